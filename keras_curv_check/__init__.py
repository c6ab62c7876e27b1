"""Proves the radii of `keras_curv` again, by other code and in another arithmetic.

It takes a network as numbers and the proofs of a run, and needs neither `keras_curv` nor
TensorFlow. All that decides is computed in ball arithmetic (Arb, by python-flint): a number is a
midpoint and a radius that contains the real number for certain. The theorems are those of
`docs/mathematics.md`.

    python -m keras_curv_check --proofs DIR --network FILE.npz
"""
