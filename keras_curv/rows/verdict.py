"""The verdict of a release gate: what was required, what was found, and whether that passes."""

from __future__ import annotations

from collections.abc import Sequence

from keras_curv.rows.requirement import Requirement


def verdict(
    summary: dict, *, required: Sequence[Requirement] = (), max_lost: float | None = None
) -> dict | None:
    """Holds a summary against what was required of it.

    Args:
        summary: of a run.
        required: certified accuracy that must be reached. One of a slice must be reached in each
            of its parts; where there is no part, there is nothing to go by, and it fails.
        max_lost: of the examples that the baseline certifies, at most this fraction may lose their
            certificate, at every radius. With a radius at which it certifies none there is
            nothing to go by, and the check fails.

    Returns:
        `passed`, and `checks`, one for each requirement, with `name` ("certified_accuracy", to be
        at least, or "lost_certificates", to be at most), `required`, `found` and `passed`. Those
        of the former have `requirement`, its spelling; `lower`, whether it is about the lower end
        of the interval; `labelled`: without labels, each prediction counts as correct; the place
        of the lowest that was found, `radius`, `slice`, `part` and `examples`; and `failed`, all
        places below, each with these and `found`. None where nothing was required.

    Example:
        >>> found = {"examples": 100, "certified_accuracy": {"0.5": 0.8, "1.0": 0.7}}
        >>> verdict(found, required=[Requirement(0.75)])["passed"]
        False
        >>> verdict(found, required=[Requirement(0.75, radius=0.5)])["passed"]
        True
    """
    checks = [_check(summary, requirement) for requirement in required]
    if max_lost is not None:
        radii = summary["baseline"]["radii"].values()
        worst = max(entry["lost_fraction"] for entry in radii)
        checks.append(
            {
                "name": "lost_certificates",
                "requirement": f"max_lost={max_lost}",
                "required": max_lost,
                "found": worst,
                "passed": worst <= max_lost and all(entry["baseline"] for entry in radii),
            }
        )
    return {"passed": all(c["passed"] for c in checks), "checks": checks} if checks else None


def _check(summary: dict, requirement: Requirement) -> dict:
    """Returns the check of one requirement of certified accuracy."""
    places = _places(summary, requirement)
    failed = [place for place in places if not place["found"] >= requirement.fraction]
    lowest = min(places, key=lambda place: place["found"], default=_NOWHERE)
    return {
        "name": "certified_accuracy",
        "requirement": requirement.spelling,
        "required": requirement.fraction,
        "lower": requirement.lower,
        "confidence": summary.get("confidence"),
        "passed": bool(places) and not failed,
        "labelled": summary.get("clean_accuracy") is not None,
        "slice": requirement.slice,
        **lowest,
        "failed": failed,
    }


_NOWHERE = {"radius": None, "part": "", "examples": 0, "found": 0.0}


def _places(summary: dict, requirement: Requirement) -> list[dict]:
    """Returns what was found at each radius, and in each part of a slice, that is meant."""
    if requirement.slice:
        parts = summary["slices"][requirement.slice]
    else:
        intervals, fractions = summary.get("certified_interval"), summary["certified_accuracy"]
        parts = {"": {"certified": fractions, "interval": intervals}}
        parts[""]["examples"] = summary["examples"]
    at = requirement.radius
    return [
        {
            "radius": radius,
            "part": part,
            "examples": entry["examples"],
            "found": entry["interval"][radius][0] if requirement.lower else fraction,
        }
        for part, entry in parts.items()
        for radius, fraction in entry["certified"].items()
        if at is None or float(radius) == at
    ]
