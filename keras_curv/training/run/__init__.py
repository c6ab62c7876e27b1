"""A training from a recipe to an exported, certified model."""
