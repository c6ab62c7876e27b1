"""A flat graph → a network: each op by a rule."""
