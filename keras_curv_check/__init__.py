"""Proves the radii of `keras_curv` again, by other code and in another arithmetic.

It takes a network as numbers and the proofs of a run, and needs neither `keras_curv` nor
TensorFlow. All that decides is computed in ball arithmetic (Arb, by python-flint), where a number
is a midpoint and a radius that contains the real number for certain; or, where matrices are large,
in float64, with a charge of all that rounding may hide. The theorems are those of
`docs/mathematics.md`.

    python -m keras_curv_check --proofs DIR --network FILE.npz
"""
