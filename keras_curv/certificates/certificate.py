"""Certificates of examples, which mean the same for all methods.

If the radius is r, then for every δ in ℝᵈ with `‖δ‖₂ < r` and every examined rival t,
`z_ŷ(x0+δ) > z_t(x0+δ)`, where ŷ is the predicted class of x0. With `rivals="all"` the prediction
therefore cannot change. Two guarantee levels define z: in `real`, real arithmetic on the stored
weights (the rounding of our own float64 computation is charged, that of a server is not); in
`float32`, the computation of a server in float32 (see `certificates/float32.py`).
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_curv.errors import require_one_of, require_positive
from keras_curv.numerics import rounding
from keras_curv.threats.properties.property import others

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

RIVALS = ("all", "runner_up", "random", "least")
GUARANTEES = ("real", "float32")
PRIMAL_EQUALS_DUAL = 1e-3  # relative: an adversarial point this close above the radius


class Status(enum.IntEnum):
    """The outcome for one example; `text` explains it to the user.

    Example:
        >>> Status(1).name, Status.ABSTAINED.text
        ('MISCLASSIFIED', 'no class wins enough votes under noise; there is no prediction')
    """

    CERTIFIED = 0
    MISCLASSIFIED = 1
    TIED = 2
    UNPROVED = 3
    NOT_FINITE = 4
    ABSTAINED = 5

    @property
    def text(self) -> str:
        """Returns the meaning of the status in one line."""
        return _STATUS_TEXT[self]


_STATUS_TEXT = {
    Status.CERTIFIED: "the prediction cannot change within the radius",
    Status.MISCLASSIFIED: "the prediction is not the label; there is nothing to certify",
    Status.TIED: "two classes share the largest logit; the prediction is not defined",
    Status.UNPROVED: "correct, but no positive radius could be proved",
    Status.NOT_FINITE: "the logits overflow; nothing can be proved",
    Status.ABSTAINED: "no class wins enough votes under noise; there is no prediction",
}
CORRECT = (Status.CERTIFIED.name, Status.UNPROVED.name)  # the prediction is the label


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Certificates:
    """Certificates of n examples; arrays of length n.

    `result[rows]` are those of some examples: an index, a slice, indices or a mask.

    Attributes:
        prediction: int64, the class with the largest logit; −1 where ABSTAINED.
        radius: float64, `‖δ‖₂ < radius` cannot change the prediction against the examined rivals;
            in the model's input units; 0 unless `status` is CERTIFIED. Under a threat, the same
            for the changes that it allows, in its norm and units.
        nearest_rival: int64, the rival with the smallest radius; −1 where none was examined.
        status: int64, values of `Status`.
        gradient_evaluations: int64, gradients of one margin, summed over the rivals.
        adversarial_distance: float64, distance of a point that was found to change the
            prediction when evaluated in float64, `inf` where the search found none; the true
            distance to the decision boundary is between `radius` and this.
        primal_equals_dual: bool, the two coincide (to 0.1 %): the radius is the exact distance.
        method: str, the method that proved the radius; "" where there is none.

    Example:
        >>> from keras_curv import certify, data
        >>> x, y = data.load_all("digits")
        >>> result = certify("saved_models/digits", x[:4], y[:4], method="crc")
        >>> result.prediction, result.nearest_rival
        (array([0, 9, 0, 5]), array([ 9, -1,  8,  9]))
        >>> [Status(status).name for status in result.status[:2]]
        ['CERTIFIED', 'MISCLASSIFIED']
        >>> result.certified_accuracy(0.25)
        0.75
        >>> print(result)
        4 examples: 3 certified, 1 misclassified; certified radii 0.7184 to 0.8451, mean 0.7794
        >>> len(result), result[1], result[result.radius > 0.8].nearest_rival
        (4, <Certificates: 1 example: 1 misclassified>, array([9]))
    """

    prediction: np.ndarray
    radius: np.ndarray
    nearest_rival: np.ndarray
    status: np.ndarray
    gradient_evaluations: np.ndarray
    adversarial_distance: np.ndarray
    primal_equals_dual: np.ndarray
    method: np.ndarray

    def __len__(self) -> int:
        """Returns the number of examples."""
        return len(self.radius)

    def __getitem__(self, rows: Any) -> Certificates:
        """Returns the certificates of some examples; of one, arrays of length 1."""
        some = np.atleast_1d(np.arange(len(self))[rows])
        return Certificates(*(column[some] for column in vars(self).values()))

    @classmethod
    def joined(cls, parts: Iterable[Certificates]) -> Certificates:
        """Returns certificates of several batches as those of one."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def certified_accuracy(self, radius: float) -> float:
        """Returns the fraction of all examples with a larger radius; 0 without examples.

        Without labels every prediction counts as correct.
        """
        return certified_fraction(self.radius, radius)

    def summary(self, radii: Any = (0.1, 0.25, 0.5, 1.0)) -> dict[str, Any]:
        """Returns counts and figures by the names that they have in the summary of a run.

        Args:
            radii: at which to give the certified accuracy.

        Example:
            >>> from keras_curv import certify, data
            >>> x, y = data.load_all("digits")
            >>> found = certify("saved_models/digits", x[:4], y[:4], method="crc").summary([0.25])
            >>> found["statuses"], found["certified_accuracy"]
            ({'CERTIFIED': 3, 'MISCLASSIFIED': 1}, {'0.25': 0.75})
        """
        counts = collections.Counter(Status(status).name for status in self.status)
        known = np.isin(self.status, [Status[name] for name in CORRECT])
        proved = np.sort(self.radius[known])
        return {
            "examples": len(self),
            "statuses": dict(counts.most_common()),
            "certified_accuracy": {str(r): self.certified_accuracy(r) for r in radii_of(radii)},
            "mean_radius": float(proved.mean()) if len(proved) else None,
            "median_radius": float(np.median(proved)) if len(proved) else None,
            "methods": dict(collections.Counter(m for m in self.method.tolist() if m)),
        }

    def to_pandas(self) -> pd.DataFrame:
        """Returns a table with a row for each example and a column for each attribute.

        Statuses are names, as in the rows of the command line. Pandas is an extra:
        `pip install 'keras_curv[pandas]'`.

        Example:
            >>> from keras_curv import certify, data
            >>> x, y = data.load_all("digits")
            >>> certify("saved_models/digits", x[:4], y[:4], method="crc").to_pandas().status[1]
            'MISCLASSIFIED'
        """
        import pandas as pd

        names = [Status(status).name for status in self.status]
        return pd.DataFrame(vars(self) | {"status": names})

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draws certified accuracy against the radius, and returns the axes.

        Beside it stands the share of examples whose nearest adversarial point met is farther,
        where there are such points: accuracy under attack is between the two curves. Matplotlib is
        an extra: `pip install 'keras_curv[plots]'`.

        Args:
            axes: of Matplotlib; None: those of a new figure.
        """
        if axes is None:
            from matplotlib import pyplot

            axes = pyplot.figure(layout="constrained").add_subplot()
        correct = np.isin(self.status, [Status[name] for name in CORRECT])
        curves = {"certified": np.where(correct, self.radius, 0.0)}
        if np.isfinite(self.adversarial_distance[correct]).any():
            curves["not broken"] = np.where(correct, self.adversarial_distance, 0.0)
        end = max(last_radius(radii) for radii in curves.values())
        for label, radii in curves.items():
            axes.step(*certified_curve(radii, end), where="post", label=label)
        axes.set(xlim=(0.0, end), ylim=(0.0, 104.0), xlabel="radius", ylabel="% of all examples")
        axes.legend()
        return axes

    def __repr__(self) -> str:
        return f"<Certificates: {self}>"

    def __str__(self) -> str:
        """Returns the counts of each status and the range of the radii in one line."""
        counts = collections.Counter(Status(status).name.lower() for status in self.status)
        parts = ", ".join(f"{count} {name}" for name, count in counts.most_common())
        proved = self.radius[self.status == Status.CERTIFIED]
        text = f"{len(self)} example{'s' * (len(self) != 1)}: {parts or 'none'}"
        if not len(proved):
            return text
        reach = f"{proved.min():.4f} to {proved.max():.4f}, mean {proved.mean():.4f}"
        if "smoothing" in self.method:
            reach += ", of the classifier smoothed by noise, each with probability 1 − α"
        return f"{text}; certified radii {reach}"


def radii_of(given: Any) -> tuple[float, ...]:
    """Returns one or several radii as a tuple; InputError unless each is positive and finite."""
    listed = np.atleast_1d(np.asarray(given, object))  # of any type
    return tuple(require_positive(radius, "radius") for radius in listed)


def certified_fraction(radii: np.ndarray, radius: float) -> float:
    """Returns the fraction of radii, 0 if uncertified, that are larger; 0 without examples."""
    return float(np.mean(radii > radius)) if len(radii) else 0.0


_AXIS = (1e-290, 1e290)  # the shortest and the longest


def last_radius(radii: np.ndarray) -> float:
    """Returns where the axis of radii ends: somewhat beyond the largest finite one.

    It is a number that can be divided and multiplied: radii beyond are not on the axis.
    """
    finite = radii[np.isfinite(radii) & (radii > 0.0)]
    return float(np.clip(finite.max(), *_AXIS)) * 1.05 if len(finite) else 1.0


def certified_curve(radii: np.ndarray, end: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns radii from 0 to `end` and the percentage of examples certified beyond each.

    Example:
        >>> certified_curve(np.array([0.0, 2.0, 1.0, 2.0]), 2.5)
        (array([0. , 1. , 2. , 2.5]), array([75., 50.,  0.,  0.]))
    """
    steps = np.unique(radii[(radii > 0.0) & (radii < end)])
    grid = np.concatenate([[0.0], steps, [end]])
    beyond = len(radii) - np.searchsorted(np.sort(radii), grid, side="right")
    return grid, 100.0 * beyond / max(1, len(radii))


def moved_away(result: Certificates, moved: np.ndarray) -> Certificates:
    """Returns certificates of inputs x from those of certified points at a distance of `moved`.

    Args:
        result: the certificates of the points.
        moved: bound on each ‖x − point‖, `(n,)`, the effect of converting x to the model's dtype.
    """
    radius = np.maximum(result.radius - rounding.up(moved), 0.0) * (1.0 - rounding.gamma(4))
    radius = np.where(moved > 0.0, radius, result.radius)
    lost = (result.status == Status.CERTIFIED) & ~(radius > 0.0)
    distance = result.adversarial_distance + moved
    return dataclasses.replace(
        result,
        radius=radius,
        status=np.where(lost, Status.UNPROVED, result.status),
        adversarial_distance=distance,
        primal_equals_dual=result.primal_equals_dual
        & (distance <= radius * (1.0 + PRIMAL_EQUALS_DUAL)),
    )


def choose_rivals(
    logits: np.ndarray, label: np.ndarray, rivals: str, seeds: np.ndarray
) -> np.ndarray:
    """Returns the rivals of each label, `(n, 1)` or `(n, classes − 1)`, int64.

    Classes are excluded by index, never by value, so that a tied rival stays in.

    Args:
        logits: `(n, classes)`.
        label: `(n,)`.
        rivals: "all", "runner_up", "random" or "least".
        seeds: `(n,)`, non-negative; used by "random".

    Raises:
        InputError: unknown `rivals`.
    """
    require_one_of(rivals, RIVALS, "rivals")
    classes = logits.shape[1]
    all_others = others(label, classes)
    if rivals == "all":
        return all_others
    theirs = np.take_along_axis(logits, all_others, axis=1)
    if rivals == "runner_up":
        column = theirs.argmax(axis=1)
    elif rivals == "least":
        column = theirs.argmin(axis=1)
    else:
        column = np.array(
            [np.random.default_rng(seed).integers(classes - 1) for seed in seeds], np.int64
        )
    return np.take_along_axis(all_others, column[:, None], axis=1)
