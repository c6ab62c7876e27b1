"""Threats, the changes that an attacker may make, and properties, which must hold under them."""
