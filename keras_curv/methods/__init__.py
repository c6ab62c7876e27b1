"""Ways to prove radii, and the best of them."""
