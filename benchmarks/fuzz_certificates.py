"""Random networks, threats and methods: no certificate may be broken, or disagree with another.

    nice python benchmarks/fuzz_certificates.py --cases 2000 --seed 0 --kind curved --kind products

Each case draws a small network, its scale, a norm, perhaps a box and frozen features, and a method;
certifies 12 examples; and attacks each radius at random points, corners and by descent. Two more
judges need no attack: examples of two classes are at least as far apart as their radii together;
and where the threat is plain l2 and the method one of crc, lipschitz, coupled and crown,
`keras_curv_check` proves each radius again by other code. A finding is a radius that one of them
contradicts, an exception other than a refusal, or a case that takes a minute of computing. Its
network, examples and radii are kept in `/tmp/fuzz_certificates`, and every case can be made again
from its number.
"""

import itertools
import pathlib
import sys
import tempfile

import numpy as np
from fuzzing import ROOT, campaign  # first of what follows: it says where that is

sys.path.insert(0, str(ROOT / "tests" / "check"))
from proved_again import verdicts

from keras_curv.certificates.auto import METHODS, choose_method
from keras_curv.certificates.other_norms import NormCertificate
from keras_curv.errors import InputError
from keras_curv.network import activations
from keras_curv.network.affine import Affine
from keras_curv.network.network import Network
from keras_curv.network.network_file import save_network
from keras_curv.network.unitwise import IDENTITY, unit_wise
from keras_curv.threats.norms import NORMS
from keras_curv.threats.threat import Threat
from keras_curv_check.check import NOT_PROVED

KINDS = {
    "curved": ("softplus", "tanh", "sigmoid", "gelu", "silu", "softsign", "elu", "sin"),
    "kinked": ("relu", "leaky_relu", "relu6", "abs", "selu", "hard_silu"),
    "products": ("square", "rsqrt"),
}
CHECKED = "crc", "lipschitz", "coupled", "crown"
EXAMPLES, FOLDER = 12, pathlib.Path("/tmp/fuzz_certificates")
SECONDS, PATIENCE = 60.0, 300  # of computing and of waiting: most of it traces TensorFlow's graphs


class Case:
    """One random case.

    Args:
        number: seed of the case.
        kinds: of networks, of which one is drawn.
    """

    def __init__(self, number, kinds=tuple(KINDS)):
        rng = self.rng = np.random.default_rng(number)
        self.kind = str(rng.choice(kinds))
        self.dim = int(rng.integers(2, 7))
        self.scale = 10.0 ** rng.choice([-12, -3, 0, 0, 0, 3, 12])
        self.network = self.products() if self.kind == "products" else self.layers()
        self.norm = str(rng.choice(["l2", "l2", "l1", "linf"]))
        self.limits = {}
        if rng.random() < 0.3:
            self.limits |= {"low": -self.scale, "high": self.scale}
        if rng.random() < 0.2:
            self.limits |= {"frozen": [0]}
        self.x = rng.uniform(-1.0, 1.0, (EXAMPLES, self.dim)) * self.scale
        self.name = str(rng.choice(METHODS))

    def maps(self, sizes):
        rng, steep = self.rng, 10.0 ** self.rng.uniform(-0.5, 0.5)
        pairs = itertools.pairwise(sizes)
        found = [
            Affine(steep * rng.normal(size=pair) / np.sqrt(pair[0]), 0.5 * rng.normal(size=pair[1]))
            for pair in pairs
        ]
        found[0] = Affine(found[0].kernel / self.scale, found[0].bias)
        return found

    def layers(self):
        """Layers of one activation, or of several beside units that carry."""
        rng, names = self.rng, KINDS[self.kind]
        hidden = rng.integers(2, 9, rng.integers(1, 4)).tolist()
        sigmas = []
        for width in hidden:
            one, other = (activations.get(str(name)) for name in rng.choice(names, 2))
            parts = [(one, 1), (IDENTITY, width - 1)] if rng.random() < 0.2 else [(one, width)]
            sigmas.append(unit_wise(parts if width > 1 else [(other, width)]))
        return Network(self.maps([self.dim, *hidden, int(rng.integers(2, 5))]), sigmas)

    def products(self):
        """Squares, the root of their mean, and products with it: normalised, or gated."""
        rng, width = self.rng, int(self.rng.integers(1, 6))
        first, last = self.maps([self.dim, width, int(rng.integers(2, 5))])
        eye, ones = np.eye(width), np.ones((width, 1)) / width
        square, rsqrt = (activations.get(name) for name in ("square", "rsqrt"))
        doubled = Affine(np.hstack([first.kernel] * 2), np.tile(first.bias, 2))
        mean = np.block([[ones, np.zeros((width, width))], [np.zeros((width, 1)), eye]])
        factor = np.ones((1, width)) / 2.0
        pairs = np.block([[factor, -factor], [eye / 2.0, eye / 2.0]])
        outer = np.vstack([last.kernel, -last.kernel])
        return Network(
            [
                doubled,
                Affine(mean, np.concatenate([[10.0 ** rng.uniform(-3, 0)], np.zeros(width)])),
                Affine(pairs, np.zeros(2 * width)),
                Affine(outer, last.bias),
            ],
            [
                unit_wise([(square, width), (IDENTITY, width)]),
                unit_wise([(rsqrt, 1), (IDENTITY, width)]),
                square,
            ],
        )

    def run(self):
        """Certifies and attacks; returns what came of it."""
        threat = Threat(norm=self.norm, **self.limits)
        network = threat.network(self.network, self.dim)
        try:
            method = self.method(network)
            if self.norm != "l2":
                method = NormCertificate(method, NORMS[self.norm])
            found = method.certify(self.x)
        except InputError:
            return "refused"
        self.radius = found.radius
        broken = self.broken(found) or self.too_near(found) or self.unproved(method)
        if broken:
            FOLDER.mkdir(exist_ok=True)
            save_network(self.network, FOLDER / f"{self.kind}_network.npz")
            np.savez(FOLDER / f"{self.kind}_examples.npz", x=self.x, radius=found.radius)
        return broken or "held"

    def method(self, network):
        """Returns the method that was drawn, or `auto` where it has no theory for the network."""
        try:
            return choose_method(self.name, network)
        except InputError:
            self.name = "auto"
            return choose_method(self.name, network)

    def inside(self, x, delta, radius):
        """Returns points of balls, from directions of any length."""
        if "frozen" in self.limits:
            delta = np.where(np.arange(self.dim) == 0, 0.0, delta)
        order = {"l2": 2, "l1": 1, "linf": np.inf}[self.norm]
        points = x + radius * _unit(delta, order)
        if "low" in self.limits:
            points = np.clip(points, -self.scale, self.scale)
        return points

    def broken(self, found):
        """Says whether a point within 1 − 1e-7 of a radius has another class."""
        rng = self.rng
        corners = np.array([*itertools.product([-1.0, 1.0], repeat=self.dim)])
        spikes = np.vstack([np.eye(self.dim), -np.eye(self.dim)])
        directions = np.vstack([corners, spikes, rng.normal(size=(200, self.dim))])
        for x, label, radius in zip(self.x, found.prediction, found.radius, strict=True):
            if not radius > 0.0:
                continue
            radius = min(radius, 10.0 * self.scale) * (1.0 - 1e-7)
            delta = directions
            for _ in range(4):
                points = self.inside(x, delta, radius)
                logits = self.network.logits(points).numpy()
                others = np.where(np.arange(logits.shape[1]) == label, -np.inf, logits)
                margin = logits[:, label] - others.max(axis=1)
                if not margin.min() > -1e-9 * np.abs(logits).max():  # NaN is a finding, too
                    return f"BROKEN {self.name} {self.norm} by {margin.min():.3g}"
                classes = np.full(len(points), label, np.int32), others.argmax(axis=1)
                gradient = self.network.margin_and_gradient(points, classes[0], classes[1])[1]
                gradient = gradient.numpy()
                if self.norm == "linf":
                    gradient = np.sign(gradient)
                delta = points - x - radius * _unit(gradient, 2)
        return ""

    def too_near(self, found):
        """Says whether two examples of different classes are nearer than their radii together."""
        if self.limits:
            return ""
        order = {"l2": 2, "l1": 1, "linf": np.inf}[self.norm]
        apart = np.linalg.norm(self.x[:, None] - self.x[None], ord=order, axis=2)
        together = found.radius[:, None] + found.radius[None]
        differ = found.prediction[:, None] != found.prediction[None]
        return "TOO NEAR" if np.any(differ & (together > apart * (1.0 + 1e-12))) else ""

    def unproved(self, method):
        """Says whether the checker does not prove a radius."""
        if self.norm != "l2" or self.limits or self.name not in CHECKED:
            return ""
        with tempfile.TemporaryDirectory() as folder:
            answers = verdicts(method, self.x, pathlib.Path(folder))[1]
        lacking = [one.detail for one in answers if one.status == NOT_PROVED]
        return f"NOT PROVED {self.name}: {lacking[0]}" if lacking else ""


def _unit(vectors, order):
    """Returns vectors of length 1, or 0 where they are 0."""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    vectors = vectors / np.where(largest > 0.0, largest, 1.0)  # no square underflows
    length = np.linalg.norm(vectors, ord=order, axis=1, keepdims=True)
    return vectors / np.where(length > 0.0, length, 1.0)


def taken(number, kinds):
    return Case(number, kinds).run()


if __name__ == "__main__":
    limits = {"seconds": SECONDS, "patience": PATIENCE}
    sys.exit(campaign(taken, ("held", "refused"), "cases", kinds=tuple(KINDS), **limits))
