"""Searches for adversarial points: in a ball, and the closest one."""
