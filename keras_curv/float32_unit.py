"""Float32: its unit roundoff, its least normal number, and the error of so many roundings."""

UNIT = 2.0**-24
TINY = 2.0**-126


def gamma(operations: float) -> float:
    """`γ_n = n u / (1 − n u)`, the relative error of n roundings in a row; see `rounding.gamma`."""
    return operations * UNIT / (1.0 - operations * UNIT)
