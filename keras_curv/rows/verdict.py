"""The verdict of a release gate: what was required, what was found, and whether that passes."""

from __future__ import annotations


def verdict(
    summary: dict, *, required: float | None = None, max_lost: float | None = None
) -> dict | None:
    """Holds a summary against what was required of it.

    Args:
        summary: of a run.
        required: certified accuracy at every radius must be at least this.
        max_lost: of the examples that the baseline certifies, at most this fraction may lose their
            certificate, at every radius. With a radius at which it certifies none there is
            nothing to go by, and the check fails.

    Returns:
        `passed`, and `checks`, each with `name` ("certified_accuracy", to be at least, or
        "lost_certificates", to be at most), `required`, `found` and `passed`; the former with
        `radius`, the key of the lowest, and `labelled`: without labels, each prediction counts as
        correct. None where nothing was required.

    Example:
        >>> verdict({"certified_accuracy": {"0.5": 0.8, "1.0": 0.7}}, required=0.75)["passed"]
        False
    """
    checks = []
    if required is not None:
        radius, lowest = min(summary["certified_accuracy"].items(), key=lambda entry: entry[1])
        checks.append(
            {
                "name": "certified_accuracy",
                "radius": radius,
                "required": required,
                "found": lowest,
                "passed": lowest >= required,
                "labelled": summary.get("clean_accuracy") is not None,
            }
        )
    if max_lost is not None:
        radii = summary["baseline"]["radii"].values()
        worst = max(entry["lost_fraction"] for entry in radii)
        checks.append(
            {
                "name": "lost_certificates",
                "required": max_lost,
                "found": worst,
                "passed": worst <= max_lost and all(entry["baseline"] for entry in radii),
            }
        )
    return {"passed": all(c["passed"] for c in checks), "checks": checks} if checks else None
