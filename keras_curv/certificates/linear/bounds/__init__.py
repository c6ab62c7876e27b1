"""Linear bounds of layers on balls, from which the certificates of this room are made."""
