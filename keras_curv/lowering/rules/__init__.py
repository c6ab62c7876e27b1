"""What each op does to an affine map."""
