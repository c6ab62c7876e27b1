"""Linear bounds on cells of a cube, in which the signs of some units are fixed.

A relu with a kink inside its interval is relaxed by two lines. On the part of the cube where its
pre-activation z is at least 0 it is the identity, and on the part where z is at most 0 it is 0:
both are exact, and each part has one more constraint, `s z ≥ 0` with s = ±1. The parts cover the
cube, so the smallest of their bounds holds on all of it.

**A cell** fixes the signs of some units, of any layers. On it, for all multipliers μ ≥ 0,

    f  ≥  f − Σ μ_i s_i z_i,

and the right-hand side has a lower bound on the whole cube by a pass back (`crown.py`): where the
pass reaches z_k, `−μ s` is added to its coefficients. Any μ ≥ 0 is sound. The best one, for these
lines, is the dual solution of a linear program over the inputs and the values of units; HiGHS
estimates it, and the pass proves what it is worth. On an empty cell the bound grows without end
with μ: a penalty on the violated constraints keeps the program feasible, and bounds μ.

**Branching** is on the unit whose relaxed value is farthest from its real one where the program has
its minimum. A cell with a positive bound is done. If no unit is open, the network is affine on the
cell, and the bound is the minimum itself.

**Rounding.** Adding `β = −μ s` to Ω costs, besides what `crown.py` charges for Ω alone,
`γ_{N+16} 3 (‖Ω + β‖ + ‖β‖) ‖Q_k‖ + ‖β‖ (‖ΔW_k‖ ‖A_{k−1}‖ + ‖Δb_k‖)`.

Reference: Wang et al., "Beta-CROWN: efficient bound propagation with per-neuron split constraints
for neural network robustness verification" (2021), theorem 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.optimize

from keras_curv.certificates.linear.bounds.coupling import coupled_units
from keras_curv.certificates.linear.bounds.linear_bounds import Balls
from keras_curv.certificates.linear.bounds.passes import BoundedLayer
from keras_curv.certificates.linear.centre_cache import Centres
from keras_curv.certificates.linear.coupled import couples
from keras_curv.certificates.linear.crown import LinearBoundCertificate
from keras_curv.certificates.method import ServedError, no_error
from keras_curv.certificates.question import Proof, Question
from keras_curv.errors import InputError
from keras_curv.network.network import Network
from keras_curv.numerics.rounding import gamma
from keras_curv.numerics.rows import row_norms
from keras_curv.threats.norms import LINF, Norm, farthest, moving

_UNSTABLE = 12  # units of a cube that are branched on: with more, cells are too many
_CELLS = 256  # for one margin on one cube
_INPUTS, _UNITS = 64, 256  # of networks for which the programs take milliseconds
_UNBOUNDED = 1e100
_PENALTY = 1e4  # in units of the largest coefficient of the margin


def branches(network: Network) -> bool:
    """Returns whether a network is so small that cells of it are soon bounded.

    Example:
        >>> branches(Network.from_weights([np.ones((2, 2))] * 2, [np.zeros(2)] * 2, "relu"))
        True
        >>> branches(Network.from_weights([np.ones((2, 2))] * 2, [np.zeros(2)] * 2, "tanh"))
        False
    """
    sparse = any(affine.is_sparse for affine in network.affines)
    small = moving(network) <= _INPUTS and sum(network.sizes[1:-1]) <= _UNITS
    return couples(network) and small and not sparse


class BranchedCertificate(LinearBoundCertificate):
    """A certificate: the largest cube on whose cells linear bounds of the margins are positive.

    Args:
        network: a small one, with relu, leaky_relu or relu6 at some units; see `branches`.
        served_error: bounds on the error of served margins.
        norm: l∞.

    Raises:
        InputError: another norm, or a network for which cells are too many.

    Example:
        >>> first, last = np.array([[1.0, 2.0], [-1.0, -1.0]]), np.array([[0.0, 1.0], [0.0, -1.0]])
        >>> network = Network.from_weights([first, last], [np.zeros(2), [0.0, -0.9]], "relu")
        >>> question = Question.of([[0.5, -0.5]], [0], [[1]])  # relu(x0−x1) − relu(2 x0−x1) < 0.9
        >>> radius = BranchedCertificate(network, norm=LINF).prove(question).radius.item()
        >>> 1.395 < radius < 1.4
        True
    """

    name = "branched"

    def __init__(
        self, network: Network, served_error: ServedError = no_error, *, norm: Norm = LINF
    ):
        if norm is not LINF or not branches(network):
            raise InputError(
                f"branching is in l∞, for networks with relu of up to {_INPUTS} inputs and "
                f"{_UNITS} units. Received: {norm.name}, {network.sizes}"
            )
        super().__init__(network, served_error, norm=norm)

    def prove(self, question: Question) -> Proof:
        """Proves radii as in `Method`; 1e100 where limits of inputs make a box that is safe."""
        x, label, rivals = question[:3]
        away = farthest(self.network, x, LINF)
        known, rows = question.known.copy(), np.flatnonzero(np.isfinite(away))
        if len(rows):
            some = x[rows], label[rows], rivals[rows]
            radius = np.repeat(away[rows, None], rivals.shape[1], axis=1)
            bounds = self.margin_bounds(*some, away[rows]) - self.served_error(*some, radius)
            known[rows] = np.where(bounds > 0.0, _UNBOUNDED, known[rows])
        found = super().prove(question._replace(known=known))
        return found._replace(method=np.where(found.radius > question.known, self.name, ""))

    def centred_bounds(
        self,
        centres: Centres,
        label: np.ndarray,
        rivals: np.ndarray,
        radius: np.ndarray,
        asked: np.ndarray,
    ) -> np.ndarray:
        """See `BallBoundCertificate`."""
        balls = self.balls_of(centres, radius)
        balls.bound_layers()
        value, rows, constants, error, _ = balls.margins(label, rivals, asked)
        for example in np.flatnonzero((value <= 0.0).any(axis=1)):
            cube = balls.take(np.array([example]))
            unstable = self._unstable(cube)
            if not 0 < sum(mask.sum() for mask in unstable) <= _UNSTABLE:
                continue
            for rival in value[example].argsort(kind="stable"):
                if value[example, rival] > 0.0:
                    break
                at = np.s_[example : example + 1, rival : rival + 1]
                margin = rows[at], constants[at], error[at]
                value[at] = max(value[at].item(), _least_of_cells(cube, unstable, margin))
                if value[at] <= 0.0:  # the others cannot change that
                    break
        return value

    def _unstable(self, cube: Balls) -> list[np.ndarray]:
        """Returns the units of each layer with a kink inside their intervals, `(N,)` each."""
        layers = zip(self.network.activations, cube.layers, strict=True)
        return [coupled_units(sigma, layer.low, layer.high)[0] for sigma, layer in layers]


Margin = tuple[np.ndarray, np.ndarray, np.ndarray]  # rows, constants and error, as of `Balls`


def _least_of_cells(cube: Balls, unstable: Sequence[np.ndarray], margin: Margin) -> float:
    """Returns a proved lower bound of a margin on a cube, the least of its cells."""
    waiting = [[np.zeros(len(mask), int) for mask in unstable]]
    least = np.inf
    for _ in range(_CELLS):
        signs = waiting.pop()
        layers = fixed_layers(cube, signs)
        multipliers, apart = _program(cube, layers, signs, margin)
        value = cell_bound(cube, layers, signs, multipliers, margin)
        if not value > 0.0:
            parts = zip(unstable, signs, apart, strict=True)
            apart = [np.where(mask & (sign == 0), part, 0.0) for mask, sign, part in parts]
            layer = int(np.argmax([part.max() for part in apart]))
            unit = apart[layer].argmax()
            if apart[layer][unit] <= 0.0:  # none is open, or the program's minimum is a real one
                return value
            for sign in (-1, 1):
                child = [part.copy() for part in signs]
                child[layer][unit] = sign
                waiting.append(child)
        else:
            least = min(least, value)
        if not waiting:
            return least
    return -np.inf


def fixed_layers(cube: Balls, signs: Sequence[np.ndarray]) -> list[BoundedLayer]:
    """Returns the layers on a cell, with lines around units on what is left of their intervals."""
    found = []
    for sigma, layer, sign in zip(cube.network.activations, cube.layers, signs, strict=True):
        low = np.where(sign > 0, np.maximum(layer.low, 0.0), layer.low)
        high = np.where(sign < 0, np.minimum(layer.high, 0.0), layer.high)
        found.append(layer._replace(low=low, high=high, lines=cube.relax(sigma, low, high)))
    return found


def cell_bound(
    cube: Balls,
    layers: Sequence[BoundedLayer],
    signs: Sequence[np.ndarray],
    multipliers: Sequence[np.ndarray],
    margin: Margin,
) -> float:
    """Returns a proved lower bound of a margin on a cell, for multipliers μ ≥ 0, `(N,)` each."""
    rows, constants, error = margin
    for index in reversed(range(len(layers))):
        layer, affine = layers[index], cube.network.affines[index]
        rows, constants, error = layer.step(rows.copy(), constants, error, affine)
        beta = -np.maximum(multipliers[index], 0.0) * signs[index]
        if beta.any():
            rows = rows + beta
            size = row_norms(beta[None, None])
            both = 3.0 * (size + row_norms(rows)) * layer.pre[:, None]
            error = error + gamma(affine.fan_out + 16) * both + size * layer.folding
        constants = constants + rows @ affine.bias
        rows = rows @ affine.kernel.T
    value = cube.inputs.minimum(rows, constants, error)[0].item()
    return value if value == value else -np.inf


def _program(
    cube: Balls, layers: Sequence[BoundedLayer], signs: Sequence[np.ndarray], margin: Margin
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Estimates the best multipliers of each layer, and how far relaxed values of units are from
    their real ones at the minimum, `(N,)` each; 0 where the program is not solved.

    Its variables are the inputs, the values of units of all layers, and by how much a sign may be
    missed.
    """
    network, x, reach = cube.network, cube.x[0], cube.inputs.radius[0]
    units, dim = [len(sign) for sign in signs], len(x)
    low, high = -np.full(dim, reach), np.full(dim, reach)
    if cube.inputs.room is not None:
        low = np.fmax(low, -cube.inputs.room.down[0])
        high = np.fmin(high, cube.inputs.room.up[0])
    if network.pinned is not None:
        low, high = np.where(network.pinned, 0.0, low), np.where(network.pinned, 0.0, high)
    bounds = np.tile([-np.inf, np.inf], (dim + sum(units) + 1, 1))
    bounds[:dim], bounds[-1, 0] = np.stack([x + low, x + high], axis=1), 0.0
    starts = np.cumsum([0, dim, *units])
    matrices: list[np.ndarray] = []
    limits: list[np.ndarray] = []
    places: list[np.ndarray] = []
    for index, (layer, sign) in enumerate(zip(layers, signs, strict=True)):
        affine, lines = network.affines[index], layer.lines
        z = np.zeros((len(sign), len(bounds)))
        z[:, starts[index] : starts[index + 1]] = affine.kernel.T
        a = np.zeros_like(z)
        a[:, starts[index + 1] : starts[index + 2]] = np.eye(len(sign))
        slopes = [line[0][:, None] for line in (lines.lower_slope, lines.upper_slope)]
        offsets = [line[0] for line in (lines.lower_intercept, lines.upper_intercept)]
        missed = -sign[:, None] * z
        missed[:, -1] = -1.0
        fixed = np.flatnonzero(sign)
        places.append(sum(part.size for part in limits) + 2 * len(sign) + np.arange(len(fixed)))
        matrices += [slopes[0] * z - a, a - slopes[1] * z, missed[fixed]]
        below = -slopes[0][:, 0] * affine.bias - offsets[0]
        above = slopes[1][:, 0] * affine.bias + offsets[1]
        limits += [below, above, (sign * affine.bias)[fixed]]
    weights = margin[0].reshape(-1)
    cost = np.zeros(len(bounds))
    cost[starts[-2] : starts[-1]] = weights
    cost[-1] = _PENALTY * np.abs(weights).max()
    with np.errstate(all="ignore"):
        found = _solved(cost, np.concatenate(matrices), np.concatenate(limits), bounds)
    if found is None:
        return [np.zeros(count) for count in units], [np.ones(count) for count in units]
    multipliers, apart, before = [np.zeros(count) for count in units], [], found.x[:dim]
    for index, (sign, place) in enumerate(zip(signs, places, strict=True)):
        multipliers[index][sign != 0] = -found.ineqlin.marginals[place]
        z = before @ network.affines[index].kernel + network.affines[index].bias
        before = found.x[starts[index + 1] : starts[index + 2]]
        real = network.activations[index].value(z).numpy()
        apart.append(np.where(np.abs(before - real) > 1e-9 * (1.0 + np.abs(z)), before - real, 0.0))
    return multipliers, [np.abs(part) for part in apart]


def _solved(
    cost: np.ndarray, matrix: np.ndarray, limit: np.ndarray, bounds: np.ndarray
) -> scipy.optimize.OptimizeResult | None:
    """Returns HiGHS' solution of a linear program, or None where it finds none."""
    try:
        found = scipy.optimize.linprog(cost, matrix, limit, bounds=bounds, method="highs")
    except ValueError:  # numbers that are not finite
        return None
    return found if found.status == 0 else None
