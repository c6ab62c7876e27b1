"""Published specifications: a box of inputs, and outputs that are unsafe there."""
