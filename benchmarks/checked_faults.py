"""Faults planted in the proofs of the package: does the checker see each, on a stated input?

    nice python benchmarks/checked_faults.py
    nice python benchmarks/checked_faults.py --only crown

Each fault changes one line: a charge is dropped, an inequality turned, a constant made smaller.
With it in place the stated method certifies the stated examples, and `keras_curv_check` reads the
proofs. A fault is seen if more radii are not proved than without it: of most inputs none is, and of
some one of 24, where two searches differ. The exit status is 1 if a fault is not seen that `UNSEEN`
does not explain.
"""

import argparse
import contextlib
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "check"), str(ROOT / "benchmarks")]

import inspect

import numpy as np
import scipy.sparse
from mutants import Mutant, imported, in_place
from proved_again import points_between, random_network, verdicts

from keras_curv.certificates.auto import choose_method
from keras_curv.certificates.float32 import Float32Error
from keras_curv.network import activations
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.pinned import PinnedNetwork
from keras_curv.network.sparse_affine import SparseAffine
from keras_curv_check.check import NOT_PROVED, OUT_OF_SCOPE, PROVED

COUNT = 24
LOW, HIGH = -1.5, 1.5  # the box
FAR = 100.0  # of some examples


def net(*names: str, seed: int = 3, **errors: float) -> Callable[[], Network]:
    """A random network of these activations, 6 inputs and 4 classes."""
    sizes = (6, *(20, 20, 12)[: len(names)], 4)
    return lambda: random_network(sizes, names, seed, **errors)


def narrow(*names: str) -> Callable[[], Network]:
    """One input, one unit in each layer, two classes, and folding errors of a thousandth.

    Of these the checker's charge, entry by entry, is no larger than the certifier's, in norms.
    """
    sizes, errors = (1, *[1] * len(names), 2), {"kernel_error": 1e-3, "bias_error": 1e-3}
    return lambda: random_network(sizes, names, **errors)


def cancelling(name: str) -> Network:
    """Two units of 1e9 or so, of which the last map takes the difference."""
    one = random_network((6, 8, 4), (name,), 3)
    (first, last), bias = one.affines, np.zeros(8)
    bias[:2] = 1e9
    kernel = last.kernel.copy()
    kernel[1] = -kernel[0]
    maps = [Affine(first.kernel, first.bias + bias), Affine(kernel, last.bias)]
    return Network(maps, one.activations)


def clipped() -> Network:
    """A smooth network behind a clip of its input, with a boundary inside the cube."""
    behind = random_network((6, 20, 4), ("softplus",), 3)
    steep = Affine(4.0 * behind.affines[0].kernel, behind.affines[0].bias)
    first = Affine(np.diag([1.0, -1.2, 1.1, 0.9, 1.3, 1.0]), np.linspace(-0.1, 0.4, 6))
    return Network(
        [first, steep, behind.affines[1]],
        [activations.get("clip(0.0,1.0)"), *behind.activations],
    )


def far_away(*names: str) -> Callable[[], Network]:
    """A network around inputs of about `FAR`, so that float32 loses digits in its first map."""

    def make() -> Network:
        near = net(*names)()
        first, *others = near.affines
        moved = Affine(first.kernel, first.bias - FAR * first.kernel.sum(axis=0))
        return Network([moved, *others], near.activations)

    return make


def lifted(*rises: float) -> Callable[[], Network]:
    """A network with so much in the bias of each map, which the next one takes off again."""

    def make() -> Network:
        near, maps, before = net("softplus")(), list[Affine](), 0.0
        for one, rise in zip(near.affines, rises, strict=True):
            maps.append(Affine(one.kernel, one.bias + rise - before * one.kernel.sum(axis=0)))
            before = rise
        return Network(maps, near.activations)

    return make


def convolved() -> Network:
    """One hidden layer behind a sparse map, four units of which see the same three inputs."""
    one = random_network((6, 20, 4), ("softplus",), 3)
    seen = (np.arange(6)[:, None] - np.arange(20) // 4) % 6 < 3
    kernel = scipy.sparse.csr_array(np.where(seen, 2.0 * one.affines[0].kernel, 0.0))
    maps = [SparseAffine(kernel, one.affines[0].bias), one.affines[1]]
    return Network(maps, one.activations)


# Name → method, network, and whether inputs stay in a box.
INPUTS: dict[str, tuple[str, Callable[[], Network], bool]] = {
    "lipschitz": ("lipschitz", net("relu", "tanh"), False),
    "lipschitz, folded": ("lipschitz", narrow("relu"), False),
    "lipschitz, cancelling": ("lipschitz", lambda: cancelling("relu"), False),
    "crc": ("crc", net("softplus"), False),
    "crc, deep": ("crc", net("softplus", "tanh"), False),
    "crc, folded": ("crc", narrow("softplus"), False),
    "crc, cancelling": ("crc", lambda: cancelling("softplus"), False),
    "crc, sparse": ("crc", convolved, False),
    "crc, box": ("crc", net("softplus"), True),
    "crc, clip": ("crc", clipped, False),
    "crc_local": ("crc_local", net("softplus"), False),
    "crc_local, deep": ("crc_local", net("softplus", "tanh"), False),
    "crc_local, folded": ("crc_local", narrow("softplus"), False),
    "two_stage": ("two_stage", net("relu", "softplus"), False),
    "quadratic": ("quadratic", net("relu"), False),
    "quadratic, folded": ("quadratic", narrow("relu"), False),
    "quadratic, cancelling": ("quadratic", lambda: cancelling("relu"), False),
    "quadratic, box": ("quadratic", net("relu"), True),
    "coupled": ("coupled", net("relu", "relu"), False),
    "coupled, folded": ("coupled", net("relu", "relu", kernel_error=1e-3), False),
    "coupled, cancelling": ("coupled", lambda: cancelling("relu"), False),
    "coupled, box": ("coupled", net("relu", "relu"), True),
    "crown": ("crown", net("relu", "relu"), False),
    "crown, smooth": ("crown", net("silu", "softplus"), False),
    "crown, turning": ("crown", net("tanh", "softplus"), False),
    "crown, folded": ("crown", net("relu", "relu", kernel_error=1e-3), False),
    "crown, cancelling": ("crown", lambda: cancelling("relu"), False),
    "crown, box": ("crown", net("tanh", "softplus"), True),
    "float32": ("crc", far_away("softplus"), False),
    "float32, deep": ("crc", far_away("softplus", "tanh"), False),
    "float32, several ops": ("crc", far_away("gelu"), False),
    "float32, activations": ("crc", lifted(1e3, 0.0), False),
    "float32, softmax": ("crc", lifted(0.0, 1e3), False),
    "float32, lipschitz": ("lipschitz", net("relu"), False),
}
# Inputs with examples of about `FAR`; and by which heads they are served in float32: then the
# guarantee is that.
DISTANT = ("float32", "float32, deep", "float32, several ops")
HEADS = {name: "logits" for name in INPUTS if name.startswith("float32")}
HEADS["float32, softmax"] = "softmax"
CRC, LINEAR = "certificates.crc.", "certificates.linear.bounds."
QUADRATIC = "certificates.linear.quadratic"
# Input, module, what stands there, what takes its place.
FAULTS = (
    ("lipschitz", "certificates.lipschitz", "left / lipschitz,", "left / (0.999 * lipschitz),"),
    (
        "lipschitz",
        "curvature.liplt",
        "total = total + activation.spread",
        "total = activation.spread",
    ),
    (
        "lipschitz, folded",
        "certificates.lipschitz",
        "np.full(network.classes, last.kernel_error)",
        "np.zeros(network.classes)",
    ),
    ("lipschitz, folded", "certificates.lipschitz", "- charge  # for", "# for"),
    ("lipschitz, cancelling", "certificates.lipschitz", "- charge  # for", "# for"),
    (
        "crc",
        CRC + "crc",
        "np.maximum(-self.curvature.lower, 0.0) +",
        "np.minimum(-self.curvature.lower, 0.0) +",
    ),
    (
        "crc",
        CRC + "crc",
        "np.maximum(-self.curvature.lower, 0.0) +",
        "0.98 * np.maximum(-self.curvature.lower, 0.0) +",
    ),
    ("crc, deep", "curvature.signed", "size = own * self._before", "size = 0.9 * own"),
    ("crc, deep", "curvature.signed", "return up(size**2, 8)", "return up(0.9 * size**2, 8)"),
    (
        "crc, folded",
        CRC + "proved_radius",
        "margin_error\n        + gradient_error * distance\n        + ",
        "",
    ),
    (
        "crc, folded",
        CRC + "proved_radius",
        "slope_error = gradient_error + unit",
        "slope_error = unit",
    ),
    (
        "crc, cancelling",
        CRC + "proved_radius",
        "margin_error\n        + gradient_error",
        "gradient_error",
    ),
    (
        "crc, box",
        CRC + "crc",
        "np.maximum(-self.curvature.lower, 0.0) +",
        "0.9 * np.maximum(-self.curvature.lower, 0.0) +",
    ),
    (
        "crc, clip",
        CRC + "crc",
        "np.maximum(-self.curvature.lower, 0.0) +",
        "np.minimum(-self.curvature.lower, 0.0) +",
    ),
    ("crc_local", CRC + "crc_local", "np.minimum(best, radius[of])", "best"),
    (
        "crc_local",
        "curvature.region",
        "reach = up(radius[:, None] * rows, 8)",
        "reach = up(0.8 * radius[:, None] * rows, 8)",
    ),
    (
        "crc_local",
        "curvature.local",
        "return np.nan_to_num(up(guess + constant, 32)",
        "return np.nan_to_num(up(0.9 * guess + constant, 32)",
    ),
    (
        "crc_local, deep",
        "curvature.region",
        "reach = up(radius[:, None] * rows, 8)",
        "reach = up(0.6 * radius[:, None] * rows, 8)",
    ),
    (
        "crc_local, deep",
        "curvature.region",
        "up(turn + anchor.carry[index] * drift, 16)",
        "up(0.5 * turn, 16)",
    ),
    (
        "crc_local, deep",
        "curvature.local",
        "loss = loss + omega * drift",
        "loss = loss + 0 * omega",
    ),
    (
        "crc_local, deep",
        "curvature.local",
        "costs = [away * size[of]",
        "costs = [0.0 * away * size[of]",
    ),
    (
        "crc_local, folded",
        CRC + "ball_step",
        "self._geometry.in_ball(found, place, error)",
        "self._geometry.in_ball(found._replace(error=[0 * e for e in found.error]), place, error)",
    ),
    (
        "crc, sparse",
        "numerics.column_groups",
        "return scaled_back(bound,",
        "return scaled_back(0.96 * bound,",
    ),
    (
        "two_stage",
        CRC + "two_stage",
        " / self.lipschitz * (1.0 - gamma(8))",
        " / (0.999 * self.lipschitz)",
    ),
    (
        "quadratic",
        QUADRATIC,
        "return CURVATURE_FLOOR - smallest",
        "return CURVATURE_FLOOR - 0.0 * smallest",
    ),
    (
        "quadratic",
        QUADRATIC,
        "up(rho[:, None] * self._rows)",
        "up(0.9 * rho[:, None] * self._rows)",
    ),
    (
        "quadratic",
        QUADRATIC,
        "[0.0, 0.0, 1.0 / width, s / width]",
        "[0.0, 0.0, 1.1 / width, s / width]",
    ),
    (
        "quadratic",
        QUADRATIC,
        "-low * t * t], high * s * s)",
        "-0.9 * low * t * t], 0.9 * high * s * s)",
    ),
    ("quadratic", QUADRATIC, "np.minimum(radius, rho[rows])", "radius"),
    ("quadratic, folded", QUADRATIC, "+ first.kernel_error * (x_norm + rho)\n", "\n"),
    ("quadratic, folded", QUADRATIC, " + 2.0 * last.kernel_error) * hidden", ") * hidden"),
    (
        "quadratic, cancelling",
        QUADRATIC,
        "error = (error + served) * ROUNDING_SLACK",
        "error = 0.0 * error",
    ),
    (
        "quadratic, box",
        QUADRATIC,
        "np.where(limit.numpy() > 0.0, steepest, 0.0)",
        "np.where(limit.numpy() > 0.0, 0.9 * steepest, 0.0)",
    ),
    ("coupled", LINEAR + "coupling", "- 0.5 * multiplier[..., 0] * self.ball**2", ""),
    (
        "coupled",
        LINEAR + "coupling",
        "- 0.5 * multiplier[..., 0] * self.ball**2",
        "+ 0.5 * multiplier[..., 0] * self.ball**2",
    ),
    ("coupled", LINEAR + "coupling", "+ half * self.whole**2", ""),
    ("coupled", LINEAR + "coupled_balls", "ball = first_ball(", "ball = 0.95 * first_ball("),
    (
        "coupled",
        LINEAR + "coupled_balls",
        "reach = self._moved.reach + self.centres.errors[index]",
        "reach = 0.8 * self._moved.reach",
    ),
    ("coupled, folded", LINEAR + "passes", "+ size * self.folding\n", ""),
    (
        "coupled, cancelling",
        LINEAR + "passes",
        "gamma(affine.fan_out + 16)\n            * (",
        "0.0 * (",
    ),
    (
        "coupled, box",
        LINEAR + "passes",
        "least = np.fmax(least, self.norm.least_linear(rows, self.room, self.radius))",
        "least = 0.8 * np.fmax(least, self.norm.least_linear(rows, self.room, self.radius))",
    ),
    (
        "crown",
        LINEAR + "passes",
        "least = -self.radius[:, None] * self.norm.dual(rows)",
        "least = -0.9 * self.radius[:, None] * self.norm.dual(rows)",
    ),
    (
        "crown",
        LINEAR + "relaxation",
        "top = np.maximum(-slope * low, high - slope * high)",
        "top = np.minimum(0.9 * -slope * low, high - slope * high)",
    ),
    (
        "crown, smooth",
        LINEAR + "relaxation",
        "top + up(sag * np.maximum(-bend_low, 0.0), 8)",
        "top - up(64.0 * sag, 8)",
    ),
    (
        "crown, turning",
        LINEAR + "tangent_lines",
        "np.minimum(top - slope * high, least - slope * touch - off)",
        "least - slope * touch - off",
    ),
    (
        "crown, turning",
        LINEAR + "tangent_lines",
        "np.minimum(top - slope * high, least - slope * touch - off)",
        "top - slope * high",
    ),
    ("crown, smooth", LINEAR + "first_layer", "+ 0.5 * kappa * radius**2", ""),
    (
        "crown, smooth",
        LINEAR + "first_layer",
        "return turned, steep * ROUNDING_SLACK",
        "return turned, 0.9 * steep * ROUNDING_SLACK",
    ),
    (
        "crown, turning",
        LINEAR + "tangent_lines",
        "intercept - RELATIVE * size - ABSOLUTE",
        "intercept + 0.02",
    ),
    ("crown, folded", LINEAR + "passes", "+ size * self.folding\n", ""),
    (
        "crown, cancelling",
        LINEAR + "passes",
        "gamma(affine.fan_out + 16)\n            * (",
        "0.0 * (",
    ),
    (
        "crown, box",
        LINEAR + "passes",
        "least = np.fmax(least, self.norm.least_linear(rows, self.room, self.radius))",
        "least = 0.8 * np.fmax(least, self.norm.least_linear(rows, self.room, self.radius))",
    ),
    (
        "crc",
        "rows.row",
        "_DOWN.create_decimal(float(radius))",
        "_DOWN.create_decimal(float(radius) * (1.0 + 2e-8))",
    ),
)
ROUNDED = "size @ away + affine.served_bias_error + _through(away, steepest, error)"
FLOAT32 = (
    ("float32", ROUNDED, "affine.served_bias_error + _through(away, steepest, error)"),
    ("float32", ROUNDED, "size @ away + _through(away, steepest, error)"),
    ("float32", "fixed = carried + _both(", "fixed = _both("),
    (
        "float32, activations",
        "own = omega * sizes[index + 1]",
        "own = 0.5 * omega * sizes[index + 1]",
    ),
    ("float32", "error = slope * before *", "error = 0.5 * slope * before *"),
    ("float32", "(reach_rate + before_rate) * within", "0.0 * (reach_rate + before_rate)"),
    ("float32, deep", "passed + rounded, passed_rate + rounded_rate", "rounded, rounded_rate"),
    ("float32, deep", "(reach_rate + before_rate) * within", "0.0 * (reach_rate + before_rate)"),
    ("float32, several ops", "own + floor * omega * (1.0 + reach + before)", "own"),
    (
        "float32, softmax",
        "fixed += relative * _both(reach + passed, label, rivals) + absolute",
        "pass",
    ),
    ("float32, softmax", "_both(reach + passed, label, rivals) + absolute", "absolute"),
    ("float32, lipschitz", ROUNDED, "size @ away + _through(away, steepest, error)"),
    ("float32, lipschitz", "steepest + folded", "folded"),
    ("float32, lipschitz", "linear.fixed + linear.rate * radius", "linear.fixed"),
)
FAULTS += tuple((name, "certificates.float32", *fault) for name, *fault in FLOAT32)
GRID = "a search leaves up to three thousandths of a radius, more than these roundings take"
# What the checker does not see, and why.
UNSEEN = {
    (
        "crc_local",
        "np.minimum(best, radius[of])",
    ): "where the search ends, the ball's radius is what κ proves",
    ("crown, turning", "np.minimum(top - slope * high, least - slope * touch - off)"): (
        "slopes are chosen so that both terms are about the same"
    ),
    ("coupled, cancelling", "gamma(affine.fan_out + 16)\n            * ("): GRID,
    ("crown, cancelling", "gamma(affine.fan_out + 16)\n            * ("): GRID,
}


def statuses(name: str) -> list[str]:
    """Returns what the checker says of each radius of an input."""
    method, make, boxed = INPUTS[name]
    network = make()
    x, header = points_between(network, COUNT), {}
    certified, head, served = network, HEADS.get(name), ()
    if boxed:
        limits = np.full(network.dim, LOW), np.full(network.dim, HIGH)
        certified = PinnedNetwork(network.affines, network.activations, None, limits=limits)
        box: dict[str, object] = {"low": [LOW], "high": [HIGH]}
        x, header = np.clip(x, LOW, HIGH), {"threat": "l2 in a box", "box": box}
    if head is not None:
        x = np.float32(x + FAR * (name in DISTANT)).astype(float)
        served, header = (Float32Error(network, head),), {"guarantee": "float32", "head": head}
    with tempfile.TemporaryDirectory() as folder:
        args = choose_method(method, certified, *served), x, pathlib.Path(folder), network
        found = verdicts(*args, **header)[1]
    return [one.status for one in found if one.status != OUT_OF_SCOPE]


def planted(module: str, old: str, new: str) -> Mutant:
    """Returns a fault as a mutant."""
    source = inspect.getsource(imported(module))
    assert source.count(old) == 1, f"{module}: {source.count(old)} times: {old}"
    line = source[: source.index(old)].count("\n") + 1
    change = f"{' '.join(old.split())} → {' '.join(new.split()) or 'nothing'}"
    return Mutant(module, line, change, source.replace(old, new))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="only inputs with this in their names")
    args = parser.parse_args()
    seen, missed = 0, 0
    for name in (name for name in INPUTS if args.only in name):
        found = statuses(name)
        proved = found.count(PROVED)
        assert proved >= 0.7 * COUNT and proved >= 0.9 * len(found), (name, found)
        for _, *fault in (fault for fault in FAULTS if fault[0] == name):
            began, mutant = time.monotonic(), planted(*fault)
            with in_place(mutant), contextlib.redirect_stderr(None):
                changed = statuses(name)
            count = changed.count(NOT_PROVED) - found.count(NOT_PROVED)
            count, reason = max(count, 0), UNSEEN.get((name, fault[1]))
            seen, missed = seen + bool(count), missed + (not count and reason is None)
            said = (
                f"seen in {count} of {len(changed)}" if count else f"NOT SEEN: {reason or 'why?'}"
            )
            print(f"{time.monotonic() - began:5.1f} s  {name}: {mutant.name}  {said}", flush=True)
    print(f"{seen} seen, {missed} not seen")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
