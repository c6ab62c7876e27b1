"""Linear bounds of a network's layers on l2 balls, passed back from layer to layer.

The mathematics is in `crown.py`; this module has the intervals, the steps back, and their charge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_curv.certificates.interval_bounds import Box
from keras_curv.certificates.linear.bounds.passes import BoundedLayer, Inputs
from keras_curv.certificates.linear.bounds.plan import Plan
from keras_curv.certificates.linear.bounds.relaxation import (
    Relaxation,
    is_linear,
    magnitude,
    relaxation,
)
from keras_curv.certificates.linear.centre_cache import Centres
from keras_curv.network.activations import Activation
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.numerics.batches import NEAR, batches
from keras_curv.numerics.intervals import Interval, outward
from keras_curv.numerics.rounding import ROUNDING_SLACK, TINY, UNIT, gamma, norm_bound, up
from keras_curv.numerics.rows import dot, row_norms, times
from keras_curv.threats.norms import L2, Norm, moving

SAMPLE = 16  # one of this many rows is tried first, and at least this many
MOST = 0.7  # largest used part of a matrix for which the unused rows and columns are left out


class Balls:
    """Balls around n examples, with the hidden layers that are bounded on them so far.

    Each is inside an l2 ball, for which bounds hold that do not use the norm.

    Attributes:
        radius: of these l2 balls, `(n,)`.
        reach: A_k of the last of these layers (of the input at first), `(n, N_k)`.
        size: bound on ‖a_k‖, `(n,)`.
        box: the box of a_k; None if there is none, as for the input.
        inputs: the balls at the input.
    """

    def __init__(
        self,
        network: Network,
        plan: Plan,
        centres: Centres,
        radius: np.ndarray,
        relax: Callable[..., Relaxation] = relaxation,
        norm: Norm = L2,
    ):
        self.network, self.plan, self.first = network, plan, centres.first
        self.centres, self.x = centres, centres.x
        self.radius = norm.length(radius, moving(network))
        self.relax = relax
        self.layers: list[BoundedLayer] = []
        self.reach = up(np.abs(self.x) + radius[:, None])
        self.size = up(norm_bound(self.x, axis=1) + self.radius)
        self.box: Box | None = None
        args = self.x, radius, norm, self.radius, centres.room, network.pinned
        self.inputs = Inputs.of(*args)

    def bound_layers(self, boxes: bool = True) -> None:
        """Bounds one hidden layer after the other by the plan and, with `boxes`, by boxes."""
        for affine, activation in zip(self.network.affines, self.network.activations, strict=False):
            known = self._by_units(affine)
            back = len(self.layers) in self.plan.back
            low, high = self._back(affine, known) if back else self.forward(affine)
            low, high = np.fmax(low, known[0]), np.fmin(high, -known[1])
            if boxes and self.box is not None:
                lowest, highest = self.box.image(affine)
                low, high = np.maximum(low, lowest), np.minimum(high, highest)
            self.tighten(affine, activation, low, high)
            if boxes:
                self.box = Box.of_values(activation, low, high)
            self.append(affine, activation, low, high)

    def suppose(self, intervals: Sequence[Interval]) -> None:
        """Sets supposed intervals of the hidden layers, so that later bounds are not proved."""
        parts = zip(self.network.affines, self.network.activations, intervals, strict=False)
        for affine, activation, (low, high) in parts:
            self.append(affine, activation, low, high)

    def append(
        self, affine: Affine, activation: Activation, low: np.ndarray, high: np.ndarray
    ) -> None:
        """Appends the layer with these intervals."""
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
        """Returns the balls around some of the examples, with their bounded layers."""
        inputs = self.inputs
        args = self.centres[some], inputs.radius[some], self.relax, inputs.norm
        balls = type(self)(self.network, self.plan, *args)
        balls.layers = [layer.take(some) for layer in self.layers]
        return balls

    def close_to(self, some: np.ndarray, direction: np.ndarray) -> Balls:
        """Returns some of the balls, with lines close to σ at their points against `direction`."""
        balls = self.take(some)
        a = balls.inputs.against(direction)
        parts = zip(self.network.affines, self.network.activations, balls.layers, strict=False)
        for index, (affine, activation, layer) in enumerate(parts):
            z = a @ affine.kernel + affine.bias
            at = np.clip(z, layer.low, layer.high)
            lines = self.relax(activation, layer.low, layer.high, at)
            balls.layers[index] = layer._replace(lines=lines)
            a = activation.value(tf.constant(z)).numpy()
        return balls

    def folding(self, affine: Affine) -> np.ndarray:
        """Bounds the folding error of `a W + b`, a the last bounded layer."""
        return up(affine.kernel_error * self.size + affine.bias_error)[:, None]

    def forward(self, affine: Affine) -> tuple[np.ndarray, np.ndarray]:
        """Bounds each entry of the next z by the movement of the layer before, in norm."""
        index = len(self.layers)
        before = self.plan.before[index] if self.plan.before else 1.0
        steepest = self.network.differentials[index].column_bounds
        reach = up(np.multiply.outer(self.radius * before, steepest))
        return outward(self.centres.z[index], reach + self.centres.errors[index])

    def tighten(
        self, affine: Affine, activation: Activation, low: np.ndarray, high: np.ndarray
    ) -> None:
        """Tightens bounds in place by passes back through receptive fields, of units that are not
        linear on them; where later layers are bounded forward, of those that are not constant."""
        index = len(self.layers)
        exact = not index and self.inputs.norm is L2 and self.inputs.room is None  # by `forward`
        if exact or index >= self.plan.passed:
            return
        settled, error = is_linear(activation, low, high), self.folding(affine)
        if self.plan.bounded_forward:  # whose boxes gain by each new bound
            settled &= _is_constant(activation, low, high)
        wanted = ~settled
        for field in self.plan.fields[index]:
            found = field.bounds(self.network, self.layers, self.inputs, error, wanted)
            for of, units, least, most in found:
                # There may be further units, which only other examples want: they stay.
                asked, own = wanted[of, units], (low[of, units], high[of, units])
                low[of, units] = np.where(asked, np.fmax(own[0], least), own[0])
                high[of, units] = np.where(asked, np.fmin(own[1], most), own[1])

    def _by_units(self, affine: Affine) -> tuple[np.ndarray, np.ndarray]:
        """Returns lower bounds on each entry of `a W + b` and on its negative, by the first
        layer's curvature, for the second layer's units; −∞ for other layers."""
        if self.first is None or len(self.layers) != 1:
            nothing = np.full((len(self.x), affine.fan_out), -np.inf)
            return nothing, nothing
        low, high = self.centres.units(self.radius)
        folding = self.folding(affine) * ROUNDING_SLACK
        return low - folding, -high - folding

    def _back(
        self, affine: Affine, known: tuple[np.ndarray, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bounds each entry of `a W + b`, a the last bounded layer, by passes back to x."""
        rows, constants = affine.kernel.T[None], affine.bias[None]
        widest = max(self.network.sizes[self._ends_at_units : len(self.layers) + 1])
        low, high = [], []
        for some in batches(affine.fan_out, max(1, len(self.x) * widest)):
            part, offset = rows[:, some], constants[:, some]
            low.append(self.lowest(part, offset, self.folding(affine), known[0][:, some]))
            high.append(-self.lowest(-part, -offset, self.folding(affine), known[1][:, some]))
        return np.concatenate(low, axis=1), np.concatenate(high, axis=1)

    def lowest(
        self, rows: np.ndarray, constants: np.ndarray, error: np.ndarray, known: np.ndarray
    ) -> np.ndarray:
        """Returns lower bounds as `minimum` does, which may be weaker.

        For each example it skips lines, or curvature, if they never give the best bound on a
        sample of its rows.
        """
        if not self.layers:
            return self.minimum(rows, constants, error)[0]
        rows, constants, error, best = self.to_second(rows, constants, error)
        ends: list[Callable[..., np.ndarray]] = [Balls.by_lines]
        if self.first is not None and len(self.layers) > 1:
            ends.append(Balls.by_curvature)
        leads = np.ones((len(ends), len(best)), bool)
        if rows.shape[1] > 4 * SAMPLE:
            step = min(SAMPLE, rows.shape[1] // SAMPLE)
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

    def by_curvature(
        self, rows: np.ndarray, constants: np.ndarray, error: np.ndarray, each: bool = False
    ) -> np.ndarray:
        """Returns lower bounds on `Λ a_1 + c`, `(n, m)`, by curvature; see `first_layer.py`."""
        assert self.first is not None
        args = self.centres.z[0], self.centres.errors[0], self.radius, rows, constants
        found = np.empty((len(self.x), rows.shape[1]))
        for some in batches(len(self.x), rows[0].size, NEAR):
            parts = (part if len(part) == 1 else part[some] for part in args)
            found[some] = self.first.minimum(*parts, each=each)
        return found - error * ROUNDING_SLACK

    def by_lines(self, rows: np.ndarray, constants: np.ndarray, error: np.ndarray) -> np.ndarray:
        """Returns lower bounds on `Λ a_1 + c` by lines; in l2 `Ω z_1(x) + c − R ‖W_1 Ω‖` if fewer
        entries of z_1 than of x are used."""
        rows, constants, error, best = self._step(0, rows, constants, error)
        first, used = self.network.differentials[0], self.layers[0].sloped
        fewer = used.sum(axis=1).max(initial=0) < first.fan_in
        fewer &= first.fan_out <= 2 * first.fan_in  # or else W_1ᵀW_1 would be large
        if not (self._may_end_at_units and fewer):
            return np.fmax(best, self._at_input(rows, constants, error)[0])
        centre, off = self.centres.z[0], self.centres.errors[0]
        size, far = row_norms(rows), norm_bound(centre, axis=1)[:, None]
        error = error + size * off + 16.0 * TINY * first.fan_out * (1.0 + far)
        error = error + gamma(first.fan_out + 16) * (size * far + np.abs(constants))
        norms = first.gram.norms(rows, used if used.mean() < MOST else None)
        fall = up(self.radius[:, None] * norms)  # folding: in `error`
        value = dot(rows, centre) + constants - fall - error * ROUNDING_SLACK
        return np.fmax(best, value)

    @property
    def _may_end_at_units(self) -> bool:
        """Returns whether passes of lines may end at z_1, by W_1ᵀW_1."""
        dense = not self.network.differentials[0].is_sparse
        return dense and self.inputs.norm is L2 and self.inputs.room is None

    @property
    def _ends_at_units(self) -> bool:
        """Returns whether passes end at z_1 for all lines."""
        fewer = self.network.sizes[1] < self.network.sizes[0]
        return bool(self.layers) and fewer and self._may_end_at_units

    def minimum(
        self, rows: np.ndarray, constants: np.ndarray, error: np.ndarray, *, each: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns proved lower bounds over the balls, `(n, m)`, and their Λ at the input.

        Args:
            rows, constants: Λ and c, `(n or 1, m, N)` and `(n or 1, m)`: the function
                `Λ a + c` of the last bounded layer.
            error: bound on how far it is above the intended function, `(n, 1 or m)`.
            each: whether the first layer's curvature, proved for each row, also bounds them.

        Returns:
            The bounds, −∞ where anything overflows, and Λ, `(n or 1, m, dim)`, 0 at pinned
            inputs.
        """
        best = np.full((len(self.x), rows.shape[1]), -np.inf)
        if self.layers:
            rows, constants, error, best = self.to_second(rows, constants, error)
            if each and self.first is not None and len(self.layers) > 1:
                best = np.fmax(best, self.by_curvature(rows, constants, error, each))
            rows, constants, error, stopped = self._step(0, rows, constants, error)
            best = np.fmax(best, stopped)
        value, rows = self._at_input(rows, constants, error)
        return np.fmax(best, value), rows

    def margins(
        self, label: np.ndarray, rivals: np.ndarray, asked: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Returns proved lower bounds on margins by one pass back, infinite where not asked, the
        functions that are bounded, as rows, constants and error, and their Λ at the input."""
        last = self.network.affines[-1]
        margin_map = self.network.margin_map(tf.constant(self.x), label, rivals)
        rows, constants = (part.numpy() for part in margin_map)
        rounding = 2.0 * UNIT * (row_norms(rows) * self.size[:, None] + np.abs(constants))
        flushed = 4.0 * TINY * last.fan_in * self.size[:, None]
        error = rounding + 2.0 * self.folding(last) + flushed
        value, direction = self.minimum(rows, constants, error)
        if self.box is not None:
            value = np.maximum(value, self.box.margins(last, rows, constants))
        value = np.where(asked, value, np.inf)
        return value, rows, constants, np.broadcast_to(error, value.shape), direction

    def to_second(
        self, rows: np.ndarray, constants: np.ndarray, error: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Goes back from the last layer to Λ and c of a_1; returns these, their error, and the best
        bounds found on the way."""
        best = np.full((len(self.x), rows.shape[1]), -np.inf)
        for index in reversed(range(1, len(self.layers))):
            rows, constants, error, stopped = self._step(index, rows, constants, error)
            affine, best = self.network.affines[index], np.fmax(best, stopped)
            rows, constants = self.before(rows, index), constants + rows @ affine.bias
        return rows, constants, error, best

    def _step(
        self, index: int, rows: np.ndarray, constants: np.ndarray, error: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Goes from Λ and c of a layer to Ω and c of its pre-activations; returns these, their
        error, and the bounds of stopping there."""
        affine, layer = self.network.affines[index], self.layers[index]
        through, offset, error = layer.step(rows, constants, error, affine)
        best = np.full((len(self.x), rows.shape[1]), -np.inf)
        if self.plan.before:
            best = self._stopped(through, offset, index) - error * ROUNDING_SLACK
        return through, offset, error, best

    def before(self, rows: np.ndarray, index: int) -> np.ndarray:
        """Returns Λ of the layer before, or of x, from Ω of pre-activations; 0 for units whose
        lines are 0."""
        affine, used = self.network.affines[index], self.layers[index].sloped
        wanted = self.layers[index - 1].used if index else None
        share = used.mean() * (1.0 if wanted is None else wanted.mean())
        if affine.is_thin_for(rows.shape[0] * rows.shape[1]):
            return times(rows, affine.thin_transpose)
        if rows.shape[1] < SAMPLE or share > MOST:
            return times(rows, affine.kernel.T)
        return times(rows, affine.kernel.T, used, wanted)

    def _at_input(
        self, rows: np.ndarray, constants: np.ndarray, error: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns bounds from Ω and c of z_1, or from Λ and c of x without layers; and Λ of x."""
        if self.layers:
            affine = self.network.affines[0]
            rows, constants = self.before(rows, 0), constants + rows @ affine.bias
        return self.inputs.minimum(rows, constants, error)

    def _stopped(self, rows: np.ndarray, constants: np.ndarray, index: int) -> np.ndarray:
        """Returns lower bounds on `Ω z_{index+1} + c`, `(n, m)`, for z in its box and in a ball."""
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


def _is_constant(activation: Activation, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Returns whether a σ that is linear on these intervals is constant there."""
    ends = (activation.value(tf.constant(end)).numpy() for end in (low, high))
    return np.equal(*ends)
