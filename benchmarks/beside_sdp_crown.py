"""Radii in l2 beside α-CROWN's and SDP-CROWN's bound, of ReLU nets on the same images.

    python benchmarks/beside_sdp_crown.py --dataset mnist --plain relu --layers 3 --limit 10
    python benchmarks/beside_sdp_crown.py --dataset mnist --isometric --limit 20 --radius 0.5

The net is that of `benchmarks/plain.py`. Both rivals are written here from their papers, without a
charge for rounding, to be compared with and not to certify; in float64, as the squares of ẑ cancel:
in float32 they went beyond adversarial points. Radii by bisection, all rivals, 0 where the
prediction is wrong.

*α-CROWN* (Xu et al., 2021): CROWN with lower slopes α for each margin and unit, by Adam from those
of CROWN. *SDP-CROWN* (Chiu, Chen, Zhang & Zhang, 2025): pre-activations z of a layer stay within ρ
of those ẑ of the example, ρ = r ‖W_1‖ ⋯ ‖W_k‖, so that for any slopes g and any λ > 0

    c·relu(z) ≥ g·z − ½ (λ (ρ² − ‖ẑ‖²) + ‖φ‖²/λ),   φ_i = min(c_i − g_i − λẑ_i, g_i + λẑ_i, 0),

one λ for each margin and layer, here by Adam together with g, which begin at CROWN's slopes. Of
the two bounds SDP-CROWN counts the larger one. The intervals of hidden units are CROWN's for all of
them, and not improved by either.
"""

import pathlib
import sys
import time

import numpy as np
import tensorflow as tf
from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from plain import model_and_examples

import keras_curv
from keras_curv.reading.served_model import read

_STEPS = flags.DEFINE_integer("ascent_steps", 40, "Of Adam at each radius.")
_RATE = flags.DEFINE_float("learning_rate", 0.05, "Of Adam.")
_HALVINGS = flags.DEFINE_integer("halvings", 10, "Of a radius, from thrice the largest of ours.")
_RADII = flags.DEFINE_multi_float("radius", [], "At which certified accuracy is shown.")
_METHODS = flags.DEFINE_multi_string("method", ["lipschitz", "crown", "coupled", "auto"], "Ours.")


class Rivals:
    """The bounds of one network at some images, all rivals of their labels.

    Args:
        network: with relu at all hidden units.
        x, label: `(n, dim)` and `(n,)`.
    """

    def __init__(self, network, x, label):
        dense = [a.kernel.toarray() if a.is_sparse else a.kernel for a in network.affines]
        self.norms = np.cumprod([np.linalg.norm(kernel, 2) for kernel in dense[:-1]])
        self.kernels = [tf.constant(kernel, tf.float64) for kernel in dense]
        self.biases = [tf.constant(a.bias, tf.float64) for a in network.affines]
        self.x = tf.constant(x, tf.float64)
        self.centres = [tf.cast(z, tf.float64) for z in network.forward(tf.constant(x))[0]]
        others = [[t for t in range(network.classes) if t != y] for y in label]
        eye = tf.eye(network.classes, dtype=tf.float64)
        sign = tf.gather(eye, label)[:, None] - tf.gather(eye, others)
        self.rows = sign @ tf.transpose(self.kernels[-1])  # (n, rivals, units)
        self.constant = tf.linalg.matvec(sign, self.biases[-1])

    @tf.function(autograph=False)
    def bounds(self, radius):
        """Returns the least margin that CROWN, α-CROWN and SDP-CROWN prove, `(n,)` each."""
        boxes = self._boxes(radius)
        slopes = self._slopes(boxes)
        crown = self._margins(radius, boxes, slopes)
        alpha = self._ascent(radius, boxes, slopes, None)
        ball = self._ascent(radius, boxes, slopes, self._multipliers(radius, boxes, slopes))
        sdp = tf.maximum(alpha, ball)
        return [tf.reduce_min(one, axis=1) for one in (crown, alpha, sdp)]

    def _boxes(self, radius):
        """Returns intervals of all hidden units, by CROWN's passes back."""
        boxes = []
        for kernel, bias, z in zip(self.kernels[:-1], self.biases, self.centres, strict=False):
            rows = tf.tile(tf.transpose(kernel)[None], (len(self.x), 1, 1))
            if not boxes:
                reach = radius[:, None] * tf.norm(kernel, axis=0)
                boxes.append((z - reach, z + reach))
                continue
            ends = []
            for sign in (1.0, -1.0):
                found = self._passed(radius, boxes, sign * rows, None)
                ends.append(sign * (found + sign * bias))
            boxes.append(tuple(ends))
        return boxes

    def _slopes(self, boxes):
        """Returns CROWN's slopes below, and above, for each margin and unit."""
        shape = (1, self.rows.shape[1], 1)
        return [
            tuple(tf.tile(one[:, None], shape) for one in (_below(low, high), _chord(low, high)[0]))
            for low, high in boxes
        ]

    def _passed(self, radius, boxes, rows, slopes, multipliers=None):
        """Returns lower bounds of `rows · relu(z)` of the last of the layers with a box."""
        constant = 0.0
        for k in reversed(range(len(boxes))):
            low, high = boxes[k]
            above, offset = (one[:, None] for one in _chord(low, high))
            below = _below(low, high)[:, None]
            if slopes is not None:  # what is stable has its one slope
                stable = (low >= 0.0) | (high <= 0.0)
                below = tf.where(stable[:, None], below, tf.clip_by_value(slopes[k][0], 0.0, 1.0))
            plus, minus = tf.maximum(rows, 0.0), tf.minimum(rows, 0.0)
            if multipliers is None:
                rows = plus * below + minus * above
                constant += tf.reduce_sum(minus * offset, axis=-1)
            else:
                lam, z = tf.exp(multipliers[k]), self.centres[k][:, None]
                g = plus * slopes[k][0] + minus * slopes[k][1]
                phi = tf.minimum(tf.minimum(rows - g - lam * z, g + lam * z), 0.0)
                square = (self.norms[k] * radius[:, None]) ** 2 - tf.reduce_sum(z * z, axis=-1)
                lam = lam[..., 0]
                constant -= 0.5 * (lam * square + tf.reduce_sum(phi * phi, axis=-1) / lam)
                rows = g
            constant += tf.linalg.matvec(rows, self.biases[k])
            rows = rows @ tf.transpose(self.kernels[k])
        least = tf.einsum("nmd,nd->nm", rows, self.x) - radius[:, None] * tf.norm(rows, axis=-1)
        return least + constant

    def _margins(self, radius, boxes, slopes, multipliers=None):
        return self.constant + self._passed(radius, boxes, self.rows, slopes, multipliers)

    def _multipliers(self, radius, boxes, slopes):
        """Returns log λ to begin with: the best one if all ẑ were 0."""
        rows, found = self.rows, []
        for k in reversed(range(len(boxes))):
            size = tf.norm(tf.minimum(rows, 0.0), axis=-1, keepdims=True) + 1e-6
            found.append(tf.math.log(size / (2.0 * self.norms[k] * radius[:, None, None])))
            below, above = slopes[k]
            rows = tf.maximum(rows, 0.0) * below + tf.minimum(rows, 0.0) * above
            rows = rows @ tf.transpose(self.kernels[k])
        return found[::-1]

    def _ascent(self, radius, boxes, slopes, multipliers):
        """Returns the largest margins met by Adam in slopes, and log λ where there are any."""
        given = [slopes, [] if multipliers is None else multipliers]
        start = tf.nest.flatten(given)

        def step(count, best, values, first, second):
            with tf.GradientTape() as tape:
                tape.watch(values)
                slopes, found = tf.nest.pack_sequence_as(given, values)
                margins = self._margins(radius, boxes, slopes, found or None)
            gradients = tape.gradient(margins, values, unconnected_gradients="zero")
            t = tf.cast(count + 1, tf.float64)
            first = [0.9 * m + 0.1 * g for m, g in zip(first, gradients, strict=True)]
            second = [0.99 * v + 0.01 * g * g for v, g in zip(second, gradients, strict=True)]
            scale = _RATE.value * tf.sqrt(1.0 - 0.99**t) / (1.0 - 0.9**t)
            moved = zip(values, first, second, strict=True)
            values = [x + scale * m / (tf.sqrt(v) + 1e-12) for x, m, v in moved]
            return count + 1, tf.maximum(best, margins), values, first, second

        none = [tf.zeros_like(each) for each in start]
        best = tf.fill(tf.shape(self.constant), -np.float64(np.inf))
        state = (tf.constant(0), best, start, none, none)
        return tf.while_loop(lambda count, *_: count < _STEPS.value, step, state)[1]


def _below(low, high):
    """Returns the slope of the line below relu that CROWN takes."""
    return tf.cast((high > -low) & (high > 0.0), high.dtype)


def _chord(low, high):
    """Returns slope and offset of the line above relu."""
    low, high = tf.minimum(low, 0.0), tf.maximum(high, 0.0)
    slope = tf.math.divide_no_nan(high, high - low)
    return slope, -slope * low


def bisected(rivals, most):
    """Returns the radius that each rival proves, `(3, n)`, at most `most`, `(n,)`."""
    low, high = np.zeros((3, len(most))), np.tile(most, (3, 1))
    for _ in range(_HALVINGS.value):
        middle = (low + high) / 2.0
        for i in range(3):
            held = rivals.bounds(tf.constant(middle[i], tf.float64))[i].numpy() > 0.0
            low[i], high[i] = np.where(held, middle[i], low[i]), np.where(held, high[i], middle[i])
    return low


def main(argv):
    del argv
    model, name, examples = model_and_examples()
    x, y = examples.arrays()
    print(f"{name}, the first {len(x)} examples", flush=True)
    network, found, seconds = read(model).network, {}, {}
    for method in _METHODS.value:
        keras_curv.certify(model, x[:1], y[:1], method=method)
        begun = time.perf_counter()
        result = keras_curv.certify(model, x, y, method=method)
        found[method] = result.radius
        seconds[method] = (time.perf_counter() - begun) / len(x)
    right = np.flatnonzero(result.prediction == y)
    flat = np.float32(x).reshape(len(x), -1).astype(np.float64)[right]
    begun = time.perf_counter()
    most = 3.0 * np.max([radius[right] for radius in found.values()], axis=0)
    radii = bisected(Rivals(network, flat, y[right]), most)
    took = (time.perf_counter() - begun) / len(right)
    for rival, radius in zip(("CROWN", "α-CROWN", "SDP-CROWN"), radii, strict=True):
        found[rival], seconds[rival] = np.zeros(len(x)), took
        found[rival][right] = radius
    for title, radius in found.items():
        shares = "".join(f", {np.mean(radius >= r):.2f} at {r:g}" for r in _RADII.value)
        print(f"{title}: mean radius {radius.mean():.4f}{shares}, {seconds[title]:.2f} s an image")
    ratio = found["coupled"][right] / radii[2] if "coupled" in found else radii[2] / radii[0]
    print(f"coupled over SDP-CROWN: least {ratio.min():.4f}, mean {ratio.mean():.4f}")


if __name__ == "__main__":
    app.run(main)
