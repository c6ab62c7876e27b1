"""What an attacker may do, and what must not change: threats and properties."""
