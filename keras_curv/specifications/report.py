"""What is said of answers to instances, in a line and in JSON."""

from __future__ import annotations

from collections.abc import Sequence

from keras_curv.errors import visible
from keras_curv.specifications.counterexamples import Counterexample
from keras_curv.specifications.verify import Answer, Verifier
from keras_curv.version import __version__

_PRINTED = 12  # entries of a counterexample


def in_words(path: str, answer: Answer, written: str = "--summary") -> str:
    """Returns the answer to an instance in one line; `written` is the flag for what has all."""
    line = f"{path}: {answer.result.value} ({answer.seconds:.1f} s)"
    if answer.counterexample is not None:
        x, y = (part.tolist() for part in answer.counterexample)
        if len(x) + len(y) <= _PRINTED:
            line += f", at {x}, where the model returns {y}"
        else:
            line += f", at the input that {written} writes"
    return visible(line + (f": {answer.reason}" if answer.reason else ""))


def described(verifier: Verifier, paths: Sequence[str], answers: Sequence[Answer]) -> dict:
    """Returns what `--summary` writes: the model, and of each instance the answer."""
    served = verifier.served
    return {
        "version": __version__,
        "saved_model": visible(served.source),
        "fingerprint": served.fingerprint,
        "method": verifier.method,
        "guarantee": "real",
        "instances": [
            {
                "file": visible(path),
                "result": answer.result.value,
                "seconds": answer.seconds,
                "boxes": answer.boxes,
                "reason": answer.reason or None,
                "counterexample": _numbers(answer.counterexample),
            }
            for path, answer in zip(paths, answers, strict=True)
        ],
    }


def _numbers(found: Counterexample | None) -> dict[str, list] | None:
    return None if found is None else {"x": found.x.tolist(), "y": found.y.tolist()}
