"""A feed-forward network as mathematics: activations, affine maps, logits, margins, gradients."""
