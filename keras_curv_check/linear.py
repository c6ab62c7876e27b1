"""Linear bounds of a network on one ball: theorems 15.1, 30.1 and 30.2, in float64.

A function `Λ a_k + c` of a layer is bounded from below by one of the layer before, and so on to
the input. Computed rows Λ are taken as exact. What rounding and folding may have changed, times
bounds of the numbers that they are multiplied by, is charged to the constant.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence

import numpy as np
from flint import arb

from keras_curv_check.balls import ZERO, Vector, floats, ups
from keras_curv_check.balls import up as above
from keras_curv_check.coupling import Coupled
from keras_curv_check.curvature import LocalCurvature
from keras_curv_check.files import Map, Witness
from keras_curv_check.first_layer import FirstLayer
from keras_curv_check.inputs import Inputs
from keras_curv_check.lines import Units
from keras_curv_check.network import Network
from keras_curv_check.norms import Matrix
from keras_curv_check.rounding import TINY, gamma, norms, outward, require_moderate, up

_PASSES = 8  # of a margin

Parts = list[tuple[np.ndarray, float]]


class Layer:
    """What is known of a hidden layer on the ball; vectors have N entries.

    Args:
        one: the map from the layer before.
        units: the activations.
        size: bounds |a| of the layer before.
        centre: z at the centre of the ball.
        off: what it is off by.

    Attributes:
        low, high: the interval of z.
        pre: bounds of `|W|ᵀ|a| + |b|`, a of the layer before.
        folding: bounds what z is off by for folding, in norm.
        values: the interval of a = σ(z).
        lines: around σ; 0 at coupled units.
        coupled: the units that are bounded together; `left` are their slopes below 0.
        middle, root: σ′ is within root² of middle; `steep` bounds |σ′|.
        ball: bounds ‖root ∘ Δz‖, Δ a difference to the centre.
        whole, before, after: bound ‖Δz‖, and ‖Δa‖ of the layer before and of this one.
    """

    def __init__(
        self, one: Map, units: Units, size: np.ndarray, centre: np.ndarray, off: np.ndarray
    ):
        self.map, self.units, self.centre, self.off = one, units, centre, off
        self.pre = up(size @ np.abs(one.kernel) + np.abs(one.bias), len(size))
        self.folding = float(up(one.kernel_error * norms(size) + one.bias_error))
        require_moderate(one.kernel, one.bias, size, self.pre, self.folding)
        self.low, self.high = np.full((2, len(centre)), [[-np.inf], [np.inf]])

    def narrow(
        self, low: np.ndarray, high: np.ndarray, some: np.ndarray | slice = slice(None)
    ) -> None:
        """Takes closer intervals of some units; NaN says nothing."""
        self.low[some] = np.fmax(self.low[some], low)
        self.high[some] = np.fmin(self.high[some], high)

    def narrow_around(self, reach: np.ndarray) -> None:
        """Takes intervals of this reach around the centre."""
        self.narrow(*outward(self.centre, reach + self.off))

    def narrow_to_image(self, low: np.ndarray, high: np.ndarray) -> None:
        """Takes the image of the box of the layer before."""
        middle = low / 2.0 + high / 2.0
        half = up(np.maximum(high - middle, middle - low))
        hidden = gamma(len(low) + 16) * self.pre + self.folding + TINY
        centre, kernel = middle @ self.map.kernel + self.map.bias, np.abs(self.map.kernel)
        self.narrow(*outward(centre, half @ kernel + 2.0 * hidden))

    def slopes(self) -> None:
        """Finds the ranges of σ and σ′ on the intervals."""
        least, most = self.units.slopes(self.low, self.high)
        self.middle, self.steep = least / 2.0 + most / 2.0, np.maximum(np.abs(least), np.abs(most))
        root = np.sqrt(np.maximum(most - self.middle, self.middle - least))
        self.root = np.where(least < most, up(root), 0.0)
        self.values = self.units.range(self.low, self.high)
        self.size = np.maximum(np.abs(self.values[0]), np.abs(self.values[1]))

    def finish(self, before: float, norm: float, ball: float, together: bool) -> None:
        """Finds how far the layer moves, couples units and chooses lines for the others.

        Args:
            before: bounds ‖Δa‖ of the layer before.
            norm: bounds ‖W‖.
            ball: bounds ‖root ∘ Δz‖.
            together: whether units are coupled.
        """
        centre, low, high, steep = self.centre, self.low, self.high, self.steep
        reach = up(np.maximum(high - centre, centre - low) + self.off)
        self.before, self.whole = before, float(min(up(norm * before), norms(reach)))
        self.after = float(up(min(norms(steep * reach), steep.max() * self.whole)))
        self.ball = float(up(min(ball, norms(self.root * reach), self.root.max() * self.whole)))
        some = np.flatnonzero(self.units.coupled(low, high) & together)
        rho = up(self.ball / self.root[some].min(initial=np.inf) + norms(self.off))
        ends = low[some], high[some]
        whole, others = float(up(self.whole + norms(self.off))), centre.copy()
        others[some] = 0.0
        middle = np.clip(centre[some], *ends)
        self.coupled = Coupled(some, *ends, middle, float(rho), whole, others)
        self.left = self.units.left[some]
        self.lines = self.units.lines(low, high, low / 2.0 + high / 2.0)
        for line in self.lines:
            line[some] = 0.0

    def step(
        self, rows: np.ndarray, constants: np.ndarray, witness: tuple | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns Λ and c of the layer before, from those of this one, `(m, N)` and `(m,)`."""
        low_slope, low, high_slope, high = self.lines
        units, kernel = self.coupled.units, self.map.kernel
        positive, negative = np.maximum(rows, 0.0), np.minimum(rows, 0.0)
        through = positive * low_slope + negative * high_slope
        gained = positive @ low + negative @ high
        sizes, error = np.abs(through), np.zeros(len(rows))
        shift = np.abs(rows) @ np.maximum(np.abs(low), np.abs(high))
        if len(units):
            bent, straight = rows[:, units] * (1.0 - self.left), rows[:, units] * self.left
            slopes, multiplier = self.coupled.chosen(bent)
            shared, turned = 0.0, np.zeros(len(rows))
            if witness is not None:
                given, turns, multiplier, shared = witness
                # A unit that the certifier did not couple has no slope: it is nearly straight.
                nearly = bent * (self.coupled.centre > 0.0)
                slopes = np.where(given[:, units] != 0.0, given[:, units], nearly)
                turns = np.where(np.isin(np.arange(len(self.low)), units), 0.0, turns)
                require_moderate(turns, shared)
                turned, error = self.coupled.turned(turns, shared)
                through, sizes = through + turns, sizes + np.abs(turns)
            require_moderate(slopes, multiplier)
            together, off = self.coupled.least(bent, slopes, multiplier, shared)
            together, error = together + turned, error + off
            through[:, units] = slopes + straight
            sizes[:, units] = np.abs(slopes) + np.abs(straight) + np.abs(bent)
            gained, shift = gained + together, shift + np.abs(together)
        products = 4.0 * (sizes @ self.pre)
        error += gamma(sum(kernel.shape) + 64) * (products + shift + np.abs(constants))
        error += norms(through) * self.folding + TINY * kernel.size
        constants = constants + gained + through @ self.map.bias
        return through @ kernel.T, constants - up(error, kernel.size)


class Ball:
    """A ball around an input, with all hidden layers bounded on it.

    Args:
        network: the network.
        inputs: the ball, or a part of it.
        pre: z of each hidden layer at the centre.
        together: whether units are bounded together, and passes are for units with a kink inside
            their interval alone; else lines bound each unit of each layer.
        first: bounds functions of the first layer by its curvature; None: there is no such bound.

    Raises:
        NotProvedError: a number is too large, or a norm has no bound.
    """

    def __init__(
        self,
        network: Network,
        inputs: Inputs,
        pre: Sequence[Vector],
        together: bool,
        first: FirstLayer | None,
    ):
        self._network, self._inputs, self._pre = network, inputs, pre
        self._together, self._layers = together, list[Layer]()
        self._first = None if together else first
        self._x, self._radius = inputs.x, inputs.radius
        self._size = up(np.abs(self._x) + self._radius)  # bounds |a| of the last layer
        require_moderate(self._x, self._radius, 1.0 / self._radius)
        for z in pre:
            self._layers.append(self._bounded(len(self._layers), *floats(z)))
            self._size = self._layers[-1].size

    @functools.cached_property
    def _near(self) -> LocalCurvature:
        assert self._first is not None
        return self._first.near(self._pre[0], self._radius)

    def margins(self, label: int, rival: int, witness: Witness | None = None) -> Iterator[arb]:
        """Yields lower bounds of `z_label − z_rival` on the ball.

        First by the box of the last layer; then by lines; then by slopes of the witness, or by
        lines that are close to σ at the mean of the points where these bounds were least. Lines
        end at the input, or at the first layer, whose curvature bounds what is left.

        Args:
            label, rival: classes.
            witness: slopes and multipliers of the coupled units; None: there is none.
        """
        last, size = self._network.file.maps[-1], self._size
        row = last.kernel[:, label] - last.kernel[:, rival]
        constant = last.bias[label] - last.bias[rival]
        lost = 2.0 * (last.kernel_error * norms(size) + last.bias_error)
        lost += gamma(len(row) + 8) * (np.abs(row) @ size + abs(constant)) + TINY
        margin = row[None], np.array([constant - up(lost)])
        if self._layers:
            low, high = self._layers[-1].values
            least = row.clip(0.0) @ low + row.clip(None, 0.0) @ high
            yield arb(float(margin[1][0] + least - lost))
        ball, given, lowest = self, None, list[np.ndarray]()
        passes = 2 if self._together else _PASSES
        for _ in range(passes if self._layers else 1):
            rows, constants = ball._to_first(*margin, given)
            if self._first is not None:
                kappas = [self._near.of(rows[0])]
                yield from self._first.least(rows, constants, kappas, self._inputs)
            rows, constants = ball._to_input(rows, constants, given)
            yield self._inputs.least(float(constants[0]), rows[0])
            lowest.append(self._inputs.against(rows[0]))
            if self._together:
                given = witness
            else:
                ball = self._close_to(np.mean(lowest, axis=0))

    def _close_to(self, a: np.ndarray) -> Ball:
        """Returns the ball with lines that are close to σ at an input."""
        ball = copy.copy(self)
        ball._layers = []
        for layer in map(copy.copy, self._layers):
            z = a @ layer.map.kernel + layer.map.bias
            at = np.clip(z, layer.low, layer.high)
            layer.lines = layer.units.lines(layer.low, layer.high, at)
            ball._layers.append(layer)
            a = layer.units.estimate(z)
        return ball

    def _to_first(
        self, rows: np.ndarray, constants: np.ndarray, witness: Witness | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Passes Λ and c of the last bounded layer back to the first."""
        for index in reversed(range(1, len(self._layers))):
            rows, constants = self._step(index, rows, constants, witness)
        return rows, constants

    def _to_input(
        self, rows: np.ndarray, constants: np.ndarray, witness: Witness | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Passes Λ and c of the first layer back to x; what a sum there hides is charged."""
        if self._layers:
            rows, constants = self._step(0, rows, constants, witness)
        size = np.abs(rows) @ up(np.abs(self._x) + self._radius) + np.abs(constants)
        return rows, constants - up(gamma(len(self._x) + 16) * size + TINY, len(self._x))

    def _step(
        self, index: int, rows: np.ndarray, constants: np.ndarray, witness: Witness | None
    ) -> tuple[np.ndarray, np.ndarray]:
        layer, given = self._layers[index], None
        if witness is not None:
            both = np.maximum(witness.multipliers[index], 1e-90)[:, None, None]
            given = witness.slopes[index][None], witness.turns[index][None], *both
        return layer.step(rows, constants, given)

    def _lowest(self, rows: np.ndarray, constants: np.ndarray) -> np.ndarray:
        """Returns lower bounds of `Λ a + c` on the ball, a the last bounded layer, `(m,)`."""
        rows, constants = self._to_first(rows, constants)
        best = np.full(len(rows), -np.inf)
        if self._first is not None and len(self._layers) > 1:
            kappas = self._near.roughly(rows)
            best = -ups([-b for b in self._first.least(rows, constants, kappas, self._inputs)])
        rows, constants = self._to_input(rows, constants)
        fall = self._inputs.falls(rows)
        level = rows @ self._x + constants - fall - gamma(4) * (np.abs(constants) + fall)
        return np.fmax(best, level)

    def _bounded(self, number: int, centre: np.ndarray, off: np.ndarray) -> Layer:
        """Returns the next layer, by its pre-activations at the centre, off by `off`."""
        one, last = self._network.file.maps[number], self._layers[-1] if number else None
        layer = Layer(one, self._network.units[number], self._size, centre, off)
        before = self._radius if last is None else last.after
        kernel = one.kernel if last is None else one.kernel[last.steep > 0.0]
        layer.narrow_around(up((norms(kernel.T) + one.kernel_error) * before))
        parts, lost = self._movement(one.kernel.T, np.full(len(centre), one.kernel_error * before))
        if last is not None:
            layer.narrow_to_image(*last.values)
            if self._together:
                far = sum((norms(part) * ball for part, ball in parts), lost)
                layer.narrow_around(up(far, len(parts) + 4))
        if last is not None or self._inputs.room is not None:
            layer.slopes()
            some = np.flatnonzero((layer.root > 0.0) | (not self._together))
            rows, bias = one.kernel.T[some], one.bias[some]
            both = np.concatenate([bias, -bias]) - layer.folding
            low, high = np.split(self._lowest(np.concatenate([rows, -rows]), both), 2)
            layer.narrow(low, -high, some)
        if self._first is not None and number == 1:
            low, high = np.split(self._first.least_units(self._inputs) - layer.folding, 2)
            layer.narrow(low, -high)
        layer.slopes()
        ball = self._ball(layer.root, parts, lost) if self._together else np.inf
        layer.finish(before, above(self._network.norms[number]), ball, self._together)
        return layer

    def _movement(self, rows: np.ndarray, lost: np.ndarray) -> tuple[Parts, np.ndarray]:
        """Returns matrices V and balls β with `‖M Δa‖ ≤ Σ ‖V‖ β`, for rows M on the last layer.

        Also returns what computed rows are off by, added to `lost`.
        """
        parts: Parts = []
        for layer in reversed(self._layers) if self._together else ():
            parts.append((rows * layer.root, layer.ball))
            rows, kernel = rows * layer.middle, layer.map.kernel
            far = 2.0 * layer.whole + above(Matrix.of(layer.map).frobenius) * layer.before
            hidden = gamma(sum(kernel.shape) + 16) * far + layer.map.kernel_error * layer.before
            lost = lost + up(norms(rows) * hidden + TINY * kernel.size)
            rows = rows @ kernel.T
        return [*parts, (rows, self._radius)], lost

    def _ball(self, root: np.ndarray, parts: Parts, lost: np.ndarray) -> float:
        """Bounds ‖root ∘ Δz‖ by the matrices of `_movement`."""
        some = np.flatnonzero(root > 0.0)
        if not len(some):
            return 0.0
        total = float(norms((lost * root)[some]))
        for part, ball in parts:
            total += above(Matrix(part[some], ZERO).scaled_rows(root[some]).norm()) * ball
        return float(up(total, 2 * len(parts) + 8))
