"""Words for a summary: figures rounded to the safe side, and on what terms they hold."""

from __future__ import annotations

import decimal
import math

from keras_curv.certificates.certificate import Status
from keras_curv.threats.properties.property import ARGMAX
from keras_curv.threats.threat import PLAIN

_RIVALS_TEXT = {
    "all": "all (a certificate of the classifier)",
    "runner_up": "runner-up only (NOT a certificate of the classifier)",
    "random": "one at random (NOT a certificate of the classifier)",
    "least": "least likely only (NOT a certificate of the classifier)",
}


_RIVAL = {
    "runner_up": "the runner-up at the example",
    "random": "which is drawn at random",
    "least": "the least likely one at the example",
}

_GUARANTEE_TEXT = {
    "real": "real arithmetic on the stored weights",
    "float32": "as served in IEEE single, in any order of sums; no TF32, bfloat16, Winograd",
    "probabilistic": "of the classifier smoothed by noise, each with probability 1 − α",
}
_LOOSE = 0.25  # of the distance of a point that was met: below, there is advice
_ADVICE = (
    "for larger radii make the model smooth, with average pooling in place of max pooling "
    "(keras_curv.smoothed), and train it with CRTModel"
)
_HARDLY = 1.3  # times the accuracy by chance
_CLIPS = "the model clips its input; what is proved is for every δ all the same"


def facts(summary: dict) -> list[tuple[str, str]]:
    """Returns on what terms the radii hold and what proved them, as names and texts."""
    mean, median = summary["mean_radius"], summary["median_radius"]
    least = "at least: " if summary.get("decide") else ""
    which = "all" if summary["clean_accuracy"] is None else "the correct ones"
    known = {
        "examples": f"{summary['examples']:,} ({_statuses(summary['statuses'])})",
        "radius": f"{least}mean {number(mean)}, median {number(median)} over {which}",
        "units": radius_units(summary),
        "cut": _cut(summary),
        "numbers": _scale(summary),
        "labels": _masks(summary),
        "fixed": _fixed(summary),
        "clip": _CLIPS if summary.get("clips_input") else "",
        **_claim(summary),
        "guarantee": f"{summary['guarantee']}: {_GUARANTEE_TEXT[summary['guarantee']]}",
        "noise": _smoothing(summary),
        "proved by": _shares(summary["methods"]),
        **_search(summary),
        "exact": f"{percent(summary['primal_equals_dual'])} of all examples: the radius is known "
        "to be the true distance",
        **looseness(summary),
    }
    return [(name, text) for name, text in known.items() if text]


_DETAILS = {"examples", "radius", "proved by", "exact", "tightness", "tolerance"}


def caveats(summary: dict) -> list[tuple[str, str]]:
    """Returns the terms that make a claim another one than the usual, or need to be looked at."""
    usual = {
        "rivals": summary["rivals"] == "all",
        "guarantee": summary["guarantee"] == "real",
        "units": radius_units(summary) == units(1.0),
    }
    hidden = _DETAILS | {name for name, is_usual in usual.items() if is_usual}
    return [(name, text) for name, text in facts(summary) if name not in hidden]


def claim(summary: dict) -> dict[str, str | None]:
    """Returns which changes a run is about and what holds under them, in words."""
    words = summary["claim"]
    if (rivals := summary["rivals"]) == "all":
        return words
    return words | {"holds": f"the predicted class stays above one class, {_RIVAL[rivals]}"}


def heading(summary: dict) -> str:
    """Returns the model, the examples and the claim in a line or two."""
    words, what = claim(summary), f"rivals: {summary['rivals']}"
    if not of_the_prediction(summary):
        what = str(words["holds"])
    if summary.get("threat", PLAIN) != PLAIN:
        what += f"; {words['changes']}"
    if summary["guarantee"] != "real":
        what += f"; guarantee: {summary['guarantee']}"
    return f"{model_name(summary)} on {summary['dataset']}, {what}"


def model_name(summary: dict, name: str | None = None) -> str:
    """Returns the model, and behind which cut of it; `name` in place of its path."""
    model = summary["saved_model"] if name is None else name
    return f"{model} behind {summary['cut']}" if summary.get("cut") else model


def radius_name(summary: dict) -> str:
    """Returns what its radii are called, by their norm."""
    return f"{claim(summary)['norm']} radius".replace("linf", "l∞")


def radius_units(summary: dict) -> str:
    """Returns the units of its radii."""
    if (said := claim(summary)["units"]) or not summary.get("cut"):
        return said or units(summary["input_scale"])
    return units(summary["input_scale"], f"what flows behind {summary['cut']}")


def is_usual(summary: dict) -> bool:
    """Returns whether it is the prediction that holds, under any change."""
    return summary.get("threat", PLAIN) == PLAIN and of_the_prediction(summary)


def of_the_prediction(summary: dict) -> bool:
    """Returns whether it is the prediction that holds, and not another property."""
    return summary.get("property", ARGMAX.spelling) == ARGMAX.spelling


def nearest_rival(summary: dict, rival: int) -> str:
    """Returns what a row's nearest rival is: a class, or an output that would leave its range."""
    if summary.get("property", "").startswith("linear"):
        return f"condition {rival} would fail first"
    if not summary.get("property", "").startswith(("threshold", "interval")):
        return f"nearest rival {rival}"
    output, rises = divmod(rival, 2)
    whose = "the output" if summary["classes"] == 1 else f"output {output}"
    return f"{whose} would {'rise' if rises else 'fall'} first"


def _fixed(summary: dict) -> str:
    """Returns which inputs are held fixed, as they are no floats."""
    named = ", ".join(map(repr, summary.get("fixed", ())))
    return named and f"{named}: no floats, held as each example has them"


def _claim(summary: dict) -> dict[str, str]:
    """Returns the claim: rivals, or another property, and the threat."""
    words, found = claim(summary), {}
    if of_the_prediction(summary):
        found["rivals"] = _RIVALS_TEXT[summary["rivals"]]
    else:
        text = f"{words['holds']} ({summary['property']}; NOT a certificate of the prediction)"
        found["property"] = text
    if summary.get("threat", PLAIN) != PLAIN:
        found["threat"] = f"{words['changes']} (NOT a certificate for other changes)"
    return found


def percent(fraction: float, digits: int = 2) -> str:
    """Returns a fraction as per cent, rounded down, as every radius is."""
    scale = 10**digits
    return f"{math.floor(fraction * 100 * scale + 1e-9) / scale:.{digits}f} %"


def percent_up(fraction: float) -> str:
    """Returns a fraction of what is lost as per cent, rounded up."""
    return f"{math.ceil(fraction * 100 * 100 - 1e-9) / 100:.2f} %"


_DOWN = decimal.Context(prec=4, rounding=decimal.ROUND_FLOOR)
_UP = decimal.Context(prec=4, rounding=decimal.ROUND_CEILING)


def number(value: float | str | None) -> str:
    """Returns a figure to four digits, rounded down; "none" for None."""
    if value is None or isinstance(value, str):
        return value or "none"
    return str(float(_DOWN.create_decimal(value)))


def number_up(value: float) -> str:
    """Returns a figure to four digits, rounded up, as suits an upper bound."""
    return str(float(_UP.create_decimal(value)))


def _statuses(counts: dict[str, int]) -> str:
    words = {Status.CERTIFIED.name: "certified at some radius"}
    return ", ".join(f"{n:,} {words.get(name, name.lower())}" for name, n in counts.items() if n)


def _shares(methods: dict[str, int]) -> str:
    """Tells which methods proved which part of the radii."""
    total = sum(methods.values())
    words = {"auto": "none needed"}  # where no change that is allowed matters
    shares = (f"{words.get(name, name)} {percent(n / total, 1)}" for name, n in methods.items())
    return ", ".join(shares) or "none"


def _search(summary: dict) -> dict[str, str]:
    """Says how much was asked for, if less than all."""
    if summary.get("decide"):
        return {"decided": "at these radii only: each radius is at least what is written"}
    if summary.get("method") != "auto" or not summary.get("tolerance"):
        return {}
    text = "a further method is asked where it may gain more than"
    return {"tolerance": f"{text} {100.0 * summary['tolerance']:.3g} %"}


def looseness(summary: dict) -> dict[str, str]:
    """Says how much the radii are of the distances of points that were met, and what to do where
    that is little. Radii that are only to be decided end where they are large enough."""
    share = summary.get("proved_of_met")
    if share is None or summary.get("decide"):
        return {}
    met = f"the median of {summary['met']:,} correct examples near which one was found"
    text = f"{percent(share, 1)} of the distance to the nearest adversarial point"
    return {"tightness": f"{text}, {met}"} | ({"advice": _ADVICE} if share < _LOOSE else {})


def _scale(summary: dict) -> str:
    """Warns of examples that may not be scaled as the model was trained."""
    asked = "was the model trained on such? see --input_scale"
    if "integers" in summary:
        return f"{summary['integers']}, taken as they are; {asked}"
    clean = summary["clean_accuracy"]
    if "largest" in summary and clean is not None and clean < _HARDLY / summary["classes"] < 1.0:
        return f"up to {summary['largest']:g}, of which it knows no more than by chance; {asked}"
    return ""


def _masks(summary: dict) -> str:
    """Says how labels were taken, where they are not classes."""
    thresholds = summary.get("property", "").startswith("threshold")
    if not thresholds or summary["classes"] == 1 or summary["clean_accuracy"] is None:
        return ""
    return "not as classes, but as Σ 2^j over the outputs j above their threshold"


def _smoothing(summary: dict) -> str:
    """Returns the terms of a vote under noise, if it was one."""
    text = "{noise}, deviation {deviation:g}; {samples:,} samples, α = {failure_probability:g}"
    return text.format(**summary) if "deviation" in summary else ""


def _cut(summary: dict) -> str:
    """Says that only a part of the model is certified, and which one."""
    text = "the part behind {cut} ({cut_tensor}); NOT a certificate for the model's input"
    return text.format(**summary) if summary.get("cut") else ""


def units(scale: float, of: str = "the model's own input") -> str:
    """Returns what a radius is measured in."""
    return of + ("" if scale == 1.0 else f" (examples × {scale:g})")


_PLACES = 5  # named of those that fail


def headline(verdict: dict) -> str:
    """Returns a verdict in a line, to stand before its checks."""
    checks = verdict["checks"]
    failed = sum(not check["passed"] for check in checks)
    many = f"{len(checks)} requirement{'' if len(checks) == 1 else 's'}"
    if not failed:
        return f"PASSED: {many} met"
    return f"FAILED: {failed} of {many} not met"


def describe(check: dict) -> str:
    """Describes one check of a verdict, in a line."""
    word = "passed" if check["passed"] else "FAILED"
    required = f"{100 * check['required']:g} %"
    if check["name"] != "certified_accuracy":
        return f"{word}: lost {percent_up(check['found'])} of the certificates, allowed {required}"
    if check["radius"] is None:
        return f"{word}: the slice {check['slice']} has no examples, required {required}"
    least = f" (lower end of the {interval_name(check)})" if check["lower"] else ""
    places = check["failed"][:_PLACES] or [check]
    found = [f"{percent(one['found'])} at {_place(check, one)}" for one in places]
    more = len(check["failed"]) - len(places)
    text = f"certified {', '.join(found)}{f' and {more} more' if more > 0 else ''}{least}"
    whose = "" if check["labelled"] else " (without labels, each prediction counts as correct)"
    return f"{word}: {text}, required {required}{whose}"


def _place(check: dict, place: dict) -> str:
    """Returns where a share was found: at which radius, and in which part of a slice."""
    part = f" in {check['slice']} {place['part']} ({place['examples']:,} examples)"
    return f"radius {place['radius']}{part if check['slice'] else ''}"


def interval_name(summary: dict) -> str:
    """Returns what the confidence intervals of a summary are called."""
    return f"{100 * summary['confidence']:g} % interval"


def interval(ends: list[float]) -> str:
    """Returns a confidence interval of a fraction in per cent, rounded outwards."""
    return f"{percent(ends[0]).removesuffix(' %')} to {percent_up(ends[1])}"
