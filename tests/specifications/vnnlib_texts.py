"""Pieces of VNN-LIB."""


def declared(inputs, outputs):
    names = [f"X_{i}" for i in range(inputs)] + [f"Y_{j}" for j in range(outputs)]
    return "".join(f"(declare-const {name} Real)" for name in names)


def boxed(low, high):
    ends = enumerate(zip(low, high, strict=True))
    return "".join(f"(assert (>= X_{i} {a!r}))(assert (<= X_{i} {b!r}))" for i, (a, b) in ends)
