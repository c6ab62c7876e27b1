"""What the attacker may do to an input before the network sees it."""
