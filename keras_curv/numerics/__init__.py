"""Numbers that can be trusted: rounding charged, norms and eigenvalues estimated and proved."""
