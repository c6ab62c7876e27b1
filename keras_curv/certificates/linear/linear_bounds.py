"""Linear bounds of a network's layers on l2 balls, passed back from layer to layer.

The mathematics is in `crown.py`; here are the intervals, the steps back, and their charge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_curv.certificates.crc.centre_cache import Centres
from keras_curv.certificates.interval_bounds import Box
from keras_curv.certificates.linear.passes import BoundedLayer, Inputs
from keras_curv.certificates.linear.plan import Plan
from keras_curv.certificates.linear.relaxation import Relaxation, is_linear, magnitude, relaxation
from keras_curv.network.activations import Activation
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.numerics.batches import NEAR, batches
from keras_curv.numerics.intervals import Interval, outward
from keras_curv.numerics.rounding import (
    ROUNDING_SLACK,
    TINY,
    gamma,
    norm_bound,
    up,
)
from keras_curv.numerics.rows import dot, row_norms, times

_SAMPLE = 16  # of so many rows one is tried first, and so many at least
_APART = 0.1  # ends at the centre over how far they fall: they are nearly as close as new ones
_MOST = 0.7  # of a matrix: where lines ask for no more, the rest is left out


class Balls:
    """Balls around n examples, with the layers that have been bounded on them so far.

    Those of l1 are within those of l2, for which all holds that does not ask for the norm.

    Attributes:
        reach: A_k of the last of these layers (of the input at first), `(n, N_k)`.
        size: bound of ‖a_k‖, `(n,)`.
        box: of a_k; None if there is none, as for the input.
        inputs: the balls at the input.
    """

    def __init__(
        self,
        network: Network,
        plan: Plan,
        centres: Centres,
        radius: np.ndarray,
        relax: Callable[..., Relaxation] = relaxation,
        norm: str = "l2",
    ):
        self.network, self.plan, self.first = network, plan, centres.first
        self.centres, self.x = centres, centres.x
        self.radius = radius
        self.relax = relax
        self.layers: list[BoundedLayer] = []
        self.ends: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.reach = up(np.abs(self.x) + radius[:, None])
        self.size = up(norm_bound(self.x, axis=1) + radius)
        self.box: Box | None = None
        self.inputs = Inputs.of(self.x, radius, norm, centres.room, network.pinned)

    def bound_layers(self, boxes: bool = True) -> None:
        """Bounds one hidden layer after the other by the plan and, if asked, by boxes."""
        for affine, activation in zip(self.network.affines, self.network.activations, strict=False):
            known = self._by_units(affine)
            back = len(self.layers) < self.plan.back
            low, high = self._back(affine, known) if back else self._forward(len(self.layers))
            low, high = np.fmax(low, known[0]), np.fmin(high, -known[1])
            if boxes and self.box is not None:
                lowest, highest = self.box.image(affine)
                low, high = np.maximum(low, lowest), np.minimum(high, highest)
            self._by_fields(affine, activation, low, high)
            if boxes:
                self.box = Box.of_values(activation, low, high)
            self._append(affine, activation, low, high)

    def suppose(self, intervals: Sequence[Interval]) -> None:
        """Takes these for the intervals of the hidden layers: what follows is no proof."""
        parts = zip(self.network.affines, self.network.activations, intervals, strict=False)
        for affine, activation, (low, high) in parts:
            self._append(affine, activation, low, high)

    def _append(
        self, affine: Affine, activation: Activation, low: np.ndarray, high: np.ndarray
    ) -> None:
        pre = affine.largest(self.reach)
        total = 1.0 + pre.sum(axis=1) + self.reach.sum(axis=1)
        self.layers.append(
            BoundedLayer(
                low,
                high,
                self.relax(activation, low, high),
                pre=norm_bound(pre, axis=1),
                folding=self.folding(affine),
                underflow=16.0 * TINY * affine.fan_out * total,
            )
        )
        self.reach = magnitude(activation, low, high, self.layers[-1].lines)
        self.size = norm_bound(self.reach, axis=1)

    def take(self, some: np.ndarray) -> Balls:
        """Returns these balls, as far as their layers are bounded."""
        args = self.centres[some], self.radius[some], self.relax, self.inputs.norm
        balls = Balls(self.network, self.plan, *args)
        balls.layers = [layer.take(some) for layer in self.layers]
        return balls

    def close_to(self, some: np.ndarray, direction: np.ndarray) -> Balls:
        """These examples, with lines close to σ at the point of the ball against `direction`."""
        length, balls = np.linalg.norm(direction, axis=1), self.take(some)
        a = balls.x - (balls.radius / np.maximum(length, TINY))[:, None] * direction
        a = a if self.network.limits is None else np.clip(a, *self.network.limits)
        parts = zip(self.network.affines, self.network.activations, balls.layers, strict=False)
        for index, (affine, activation, layer) in enumerate(parts):
            z = a @ affine.kernel + affine.bias
            at = np.clip(z, layer.low, layer.high)
            lines = self.relax(activation, layer.low, layer.high, at)
            balls.layers[index] = layer._replace(lines=lines)
            a = activation.value(tf.constant(z)).numpy()
        return balls

    def folding(self, affine: Affine) -> np.ndarray:
        """Bounds what folding has rounded away of `a W + b`, a the last layer that is known."""
        return up(affine.kernel_error * self.size + affine.bias_error)[:, None]

    def _forward(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Bounds each entry of z_{index+1} by how far the layer before can move, as a vector."""
        centre, errors = self.centres.z, self.centres.errors
        steepest = self.network.differentials[index].column_bounds
        reach = up(np.multiply.outer(self.radius * self.plan.before[index], steepest))
        return outward(centre[index], reach + errors[index])

    def _by_fields(
        self, affine: Affine, activation: Activation, low: np.ndarray, high: np.ndarray
    ) -> None:
        """Lets these bounds be no worse than those of passes back through what units see, where
        lines around σ gain by that."""
        index = len(self.layers)
        exact = not index and self.inputs.norm == "l2" and self.inputs.room is None  # by `_forward`
        if exact or index >= len(self.plan.fields):
            return
        level, steep = self.centres.ends(index, self.radius, affine.fan_out)
        _narrow(low, high, level, steep, self.radius)
        apart, fall = -level.sum(axis=2), self.radius[:, None] * steep.sum(axis=2)
        known = _is_constant(activation, low, high) | (apart <= _APART * fall)
        wanted, error = ~(known & is_linear(activation, low, high)), self.folding(affine)
        for field in self.plan.fields[index]:
            found = field.bounds(self.network, self.layers, self.inputs, error, wanted)
            for of, units, *ends in found:
                # Of others, too, as many as other examples want: those are left as they are.
                asked = wanted[of, units][..., None]
                for array, end in zip((level, steep), ends, strict=True):
                    array[of, units] = np.where(asked, end, array[of, units])
        _narrow(low, high, level, steep, self.radius)
        if not self.plan.bounded_forward:  # from boxes, which are the better for each new bound
            self.ends[index] = level, steep

    def remember(self, some: np.ndarray) -> None:
        """Lets smaller balls around these examples know what was proved of their units."""
        self.centres.keep(some, self.radius, self.ends)

    def _by_units(self, affine: Affine) -> tuple[np.ndarray, np.ndarray]:
        """Lower bounds of each entry of `a W + b` and of its negative, by the first layer's
        curvature: of the second layer's units; −∞ of others."""
        if self.first is None or len(self.layers) != 1:
            nothing = np.full((len(self.x), affine.fan_out), -np.inf)
            return nothing, nothing
        low, high = self.centres.units(self.radius)
        folding = self.folding(affine) * ROUNDING_SLACK
        return low - folding, -high - folding

    def _back(
        self, affine: Affine, known: tuple[np.ndarray, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bounds each entry of `a W + b`, a the last layer that is known, by passes back to x."""
        rows, constants = affine.kernel.T[None], affine.bias[None]
        widest = max(self.network.sizes[self._ends_at_units : len(self.layers) + 1])
        low, high = [], []
        for some in batches(affine.fan_out, max(1, len(self.x) * widest)):
            part, offset = rows[:, some], constants[:, some]
            low.append(self._lowest(part, offset, self.folding(affine), known[0][:, some]))
            high.append(-self._lowest(-part, -offset, self.folding(affine), known[1][:, some]))
        return np.concatenate(low, axis=1), np.concatenate(high, axis=1)

    def _lowest(
        self, rows: np.ndarray, constants: np.ndarray, error: np.ndarray, known: np.ndarray
    ) -> np.ndarray:
        """The bounds of `minimum`, but not each the best that there is.

        Of lines and curvature, what gains nothing on a sample of an example's rows, beside the
        other and what is known, is left out for it.
        """
        if not self.layers:
            return self.minimum(rows, constants, error)[0]
        rows, constants, error, best = self._to_second(rows, constants, error)
        ends: list[Callable[..., np.ndarray]] = [Balls._by_lines]
        if self.first is not None and len(self.layers) > 1:
            ends.append(Balls._by_curvature)
        leads = np.ones((len(ends), len(best)), bool)
        if rows.shape[1] > 4 * _SAMPLE:
            step = min(_SAMPLE, rows.shape[1] // _SAMPLE)
            few = rows[:, ::step], constants[:, ::step], error[:, ::step]
            others = np.fmax(best, known)[:, ::step]
            tried = np.stack([others, *(end(self, *few) for end in ends)])
            leader = np.nan_to_num(tried, nan=-np.inf).argmax(axis=0)
            leads = np.array([np.any(leader == k, axis=1) for k in range(1, len(tried))])
        for end, leading in zip(ends, leads, strict=True):
            if leading.all():
                best = np.fmax(best, end(self, rows, constants, error))
            elif leading.any():
                parts = (part if len(part) == 1 else part[leading] for part in (rows, constants))
                value = end(self.take(leading), *parts, error[leading])
                best[leading] = np.fmax(best[leading], value)
        return best

    def _by_curvature(
        self, rows: np.ndarray, constants: np.ndarray, error: np.ndarray, each: bool = False
    ) -> np.ndarray:
        """Lower bounds of `Λ a_1 + c`, `(n, m)`; see `first_layer.py`."""
        assert self.first is not None
        args = self.centres.z[0], self.centres.errors[0], self.radius, rows, constants
        found = np.empty((len(self.x), rows.shape[1]))
        for some in batches(len(self.x), rows[0].size, NEAR):
            parts = (part if len(part) == 1 else part[some] for part in args)
            found[some] = self.first.minimum(*parts, each=each)
        return found - error * ROUNDING_SLACK

    def _by_lines(self, rows: np.ndarray, constants: np.ndarray, error: np.ndarray) -> np.ndarray:
        """Lower bounds of `Λ a_1 + c`; in l2 `Ω z_1(x) + c − R ‖W_1 Ω‖`, where fewer entries of z_1
        than of x count."""
        rows, constants, error, best = self._step(0, rows, constants, error)
        first, used = self.network.differentials[0], self.layers[0].lines.sloped
        fewer = used.sum(axis=1).max(initial=0) < first.fan_in
        fewer &= first.fan_out <= 2 * first.fan_in  # or else W_1ᵀW_1 would be large
        if not (self._may_end_at_units and fewer):
            return np.fmax(best, self._at_input(rows, constants, error)[0])
        centre, off = self.centres.z[0], self.centres.errors[0]
        size, far = row_norms(rows), norm_bound(centre, axis=1)[:, None]
        error = error + size * off + 16.0 * TINY * first.fan_out * (1.0 + far)
        error = error + gamma(first.fan_out + 16) * (size * far + np.abs(constants))
        norms = first.gram.norms(rows, used if used.mean() < _MOST else None)
        fall = up(self.radius[:, None] * norms)  # folding: in `error`
        value = dot(rows, centre) + constants - fall - error * ROUNDING_SLACK
        return np.fmax(best, value)

    @property
    def _may_end_at_units(self) -> bool:
        """Whether passes of lines may end at z_1, by W_1ᵀW_1."""
        dense = not self.network.differentials[0].is_sparse
        return dense and self.inputs.norm == "l2" and self.inputs.room is None

    @property
    def _ends_at_units(self) -> bool:
        """Whether they do, whatever the lines are."""
        fewer = self.network.sizes[1] < self.network.sizes[0]
        return bool(self.layers) and fewer and self._may_end_at_units

    def minimum(
        self, rows: np.ndarray, constants: np.ndarray, error: np.ndarray, *, each: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Proved lower bounds over the balls, `(n, m)`, and the Λ they have at the input.

        Args:
            rows, constants: Λ and c, `(n or 1, m, N)` and `(n or 1, m)`: the function
                `Λ a + c` of the last layer that is known.
            error: what that may be above the function that is meant, `(n, 1 or m)`.
            each: whether the first layer's curvature bounds them, too, proved for each row.

        Returns:
            The bounds, −∞ where anything overflows, and Λ, `(n or 1, m, dim)`, 0 at inputs that
            are pinned.
        """
        best = np.full((len(self.x), rows.shape[1]), -np.inf)
        if self.layers:
            rows, constants, error, best = self._to_second(rows, constants, error)
            if each and self.first is not None and len(self.layers) > 1:
                best = np.fmax(best, self._by_curvature(rows, constants, error, each))
            rows, constants, error, stopped = self._step(0, rows, constants, error)
            best = np.fmax(best, stopped)
        value, rows = self._at_input(rows, constants, error)
        return np.fmax(best, value), rows

    def _to_second(
        self, rows: np.ndarray, constants: np.ndarray, error: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """From the last layer back to Λ and c of a_1; with their error, and the best of the bounds
        that were met on the way."""
        best = np.full((len(self.x), rows.shape[1]), -np.inf)
        for index in reversed(range(1, len(self.layers))):
            rows, constants, error, stopped = self._step(index, rows, constants, error)
            affine, best = self.network.affines[index], np.fmax(best, stopped)
            rows, constants = self._before(rows, index), constants + rows @ affine.bias
        return rows, constants, error, best

    def _step(
        self, index: int, rows: np.ndarray, constants: np.ndarray, error: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """From Λ and c of a layer to Ω and c of its pre-activations; their error, and the bounds of
        stopping there."""
        affine, layer = self.network.affines[index], self.layers[index]
        through, offset, error = layer.step(rows, constants, error, affine)
        best = np.full((len(self.x), rows.shape[1]), -np.inf)
        if self.plan.before:
            best = self._stopped(through, offset, index) - error * ROUNDING_SLACK
        return through, offset, error, best

    def _before(self, rows: np.ndarray, index: int) -> np.ndarray:
        """From Ω of pre-activations to Λ of the layer before or of x; of units that are not asked
        about there, 0."""
        affine, used = self.network.affines[index], self.layers[index].lines.sloped
        wanted = self.layers[index - 1].lines.used if index else None
        share = used.mean() * (1.0 if wanted is None else wanted.mean())
        if affine.is_sparse or rows.shape[1] < _SAMPLE or share > _MOST:
            return times(rows, affine.kernel.T)
        return times(rows, affine.kernel.T, used, wanted)

    def _at_input(
        self, rows: np.ndarray, constants: np.ndarray, error: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bounds from Ω and c of z_1, or from Λ and c of x while no layer is known; and that Λ."""
        if self.layers:
            affine = self.network.affines[0]
            rows, constants = self._before(rows, 0), constants + rows @ affine.bias
        return self.inputs.minimum(rows, constants, error)

    def _stopped(self, rows: np.ndarray, constants: np.ndarray, index: int) -> np.ndarray:
        """Lower bounds of `Ω z_{index+1} + c`, `(n, m)`: z is in its box, and in a ball."""
        layer, size = self.layers[index], row_norms(rows)
        centre, errors = self.centres.z[index], self.centres.errors[index]
        farthest = np.maximum(np.abs(layer.low), np.abs(layer.high))
        box = dot(np.maximum(rows, 0.0), layer.low) + dot(np.minimum(rows, 0.0), layer.high)
        movement = up(self.radius * self.plan.pre[index])[:, None] + errors
        ball = dot(rows, centre) - up(size * movement)
        best = np.full(ball.shape, -np.inf)
        for value, where in ((box, farthest), (ball, centre)):
            far = norm_bound(where, axis=1)[:, None]
            rounding = gamma(rows.shape[-1] + 16) * (size * far + np.abs(constants))
            underflow = 16.0 * TINY * rows.shape[-1] * (1.0 + far)
            best = np.fmax(best, value + constants - up(rounding + underflow, 8))
        return best


def _narrow(
    low: np.ndarray, high: np.ndarray, level: np.ndarray, steep: np.ndarray, radius: np.ndarray
) -> None:
    """Lets `[low, high]`, `(n, N)`, be no wider than by these ends, `(n, N, 2)`, in place."""
    ends = level - radius[:, None, None] * steep
    np.fmax(low, ends[..., 0], out=low)
    np.fmin(high, -ends[..., 1], out=high)


def _is_constant(activation: Activation, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Whether what is linear does not move on these intervals."""
    ends = (activation.value(tf.constant(end)).numpy() for end in (low, high))
    return np.equal(*ends)
