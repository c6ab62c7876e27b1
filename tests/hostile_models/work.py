"""Well-formed models of a few bytes that ask for far too much work or memory; by their sizes."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from hostile_models.models import cases, export

CASES, case = cases()
HARMLESS, harmless_case = cases()


class Weights(tf.Module):
    """Variables of these shapes, all of one number; or of `signs`, which bound no norm at once."""

    def __init__(self, *shapes, signs=False):
        super().__init__()
        rng = np.random.default_rng(0)
        make = (lambda s: rng.normal(0.0, 0.05, s).astype(np.float32)) if signs else _filled
        self.parts = [tf.Variable(make(shape)) for shape in shapes]


def _filled(shape):
    return tf.fill(shape, 1e-3)


def _model(name, shape, body, *shapes, signs=False):
    """A case whose `body(x, *variables)` makes two columns or more of examples of this shape."""
    spec = [tf.TensorSpec((None, *shape), tf.float32)]
    case(f"work: {name}")(
        lambda path, canary: export(
            path, lambda x, net: body(x, *net.parts), spec, net=Weights(*shapes, signs=signs)
        )
    )


def _flat(x):
    return tf.reshape(x, (-1, int(np.prod(x.shape[1:]))))


for count in (1025, 3000, 10_000, 30_000):
    _model(
        f"{count} classes", (4,), lambda x, w, v: tf.nn.softplus(x @ w) @ v, (4, 16), (16, count)
    )
    _model(f"{count} classes of one map", (4,), lambda x, w: x @ w, (4, count))

for size, times in ((1024, 16), (1024, 200), (2048, 8), (2048, 100), (4096, 2), (4096, 30)):

    def _powers(x, w, times=times):
        for _ in range(times):
            x = x @ w
        return x[:, :3]

    _model(f"{times} products with one matrix of {size}", (size,), _powers, (size, size))

for side, window in ((1000, 500), (720, 360), (720, 2), (2000, 1000), (400, 200), (700, 1)):
    for stride in (1, window):
        _model(
            f"means of {window} × {window} of {side} × {side}, strides {stride}",
            (side, side, 1),
            lambda x, n=window, s=stride: _flat(tf.nn.avg_pool2d(x, n, s, "SAME"))[:, :3],
        )

for side, dilation, channels in ((700, 650, 1), (720, 500, 1), (180, 170, 16), (64, 60, 256)):
    _model(
        f"a kernel dilated by {dilation} on {side} × {side} × {channels}",
        (side, side, channels),
        lambda x, w, d=dilation: _flat(
            tf.raw_ops.Conv2D(
                input=x, filter=w, strides=[1] * 4, padding="SAME", dilations=[1, d, d, 1]
            )
        )[:, :3],
        (2, 2, channels, 2),
    )

for side, filters, layers in ((32, 64, 2), (64, 32, 3), (28, 128, 2), (128, 8, 6), (16, 256, 2)):

    def _chain(x, *kernels):
        for kernel in kernels:
            x = tf.nn.conv2d(x, kernel, 1, "SAME")
        return _flat(x)[:, :3]

    sizes = [(3, 3, 1, filters)] + [(3, 3, filters, filters)] * (layers - 1)
    _model(f"{layers} convolutions of {side} × {side} × {filters}", (side, side, 1), _chain, *sizes)

# Side, window, filters, and how many: each alone is small, and most of them have many weights.
_DEEP = [
    *((side, 5, 64, count) for side, count in ((4, 60), (8, 60), (8, 8), (10, 60))),
    *((side, 9, 16, 12) for side in (12, 16, 24, 32)),
    *((side, 3, filters, 80) for side, filters in ((8, 64), (16, 64), (16, 32))),
    *((side, 3, 128, 20) for side in (4, 8)),
    (2, 2, 512, 3),
]

for side, window, filters, count in _DEEP:
    for name, sigma in (("", tf.identity), (", activated", tf.nn.softplus)):
        for first in (1, filters):

            def _deep(x, *kernels, sigma=sigma):
                for kernel in kernels:
                    x = sigma(tf.nn.conv2d(x, kernel, 1, "SAME"))
                return _flat(x)[:, :3]

            _model(
                f"{count} convolutions {window} × {window} of {side} × {side} × {filters}, the "
                f"first of {first}{name}",
                (side, side, first),
                _deep,
                (window, window, first, filters),
                *[(window, window, filters, filters)] * (count - 1),
                signs=True,
            )

for size, filters, window in ((8, 631, 8), (8, 2000, 6), (1, 3000, 15)):

    def _wide(x, w, v, window=window):
        x = tf.nn.softplus(tf.nn.conv2d(x, w, 2, "SAME"))
        return _flat(tf.nn.avg_pool2d(x, window, window, "VALID"))[:, :1000] @ v

    _model(
        f"{filters} filters of {size} × {size} pooled by {window}",
        (32, 32, 3),
        _wide,
        (size, size, 3, filters),
        (1000, 3),
    )

for height, channels in ((1, 3000), (3, 2000), (1, 20_000)):
    _model(
        f"depthwise {height} × {height} on {channels} channels",
        (height, height, channels),
        lambda x, w: _flat(tf.nn.depthwise_conv2d(x, w, [1] * 4, "SAME"))[:, :3],
        (height, height, channels, 1),
    )

for op in ("add", "multiply", "maximum", "subtract", "divide"):
    for size in (2000, 5000, 12_000):

        def _outer(x, w, op=op, size=size):
            wide = getattr(tf, op)(tf.reshape(w, (size, 1)), tf.reshape(w, (1, size)))
            for _ in range(20):
                wide = getattr(tf, op)(wide, w)
            return x + wide[:1, :4]

        _model(f"constants of {size} × {size}, {op}", (4,), _outer, (size,))

for entries in (2**20, 2**22):
    for op in ("tile", "pad", "gather"):

        def _grown(x, op=op, n=entries):
            if op == "tile":
                return tf.tile(x, (1, n // 4))[:, :3]
            if op == "pad":
                return tf.pad(x, ((0, 0), (0, n)))[:, :3]
            return tf.gather(x, tf.zeros(n // 64, tf.int32), axis=1)[:, :3]

        _model(f"{entries} entries by {op}", (4,), _grown)

for size in (5800, 8192):
    _model(f"a matrix of {size} × {size}", (size,), lambda x, w: tf.exp(x @ w)[:, :3], (size, size))


@case("work: 40 matrices of 1300 × 1300, then an op without a rule")
def _many(path, canary):
    def body(x, net):
        for part in net.parts:
            x = tf.nn.softplus(x @ part)
        return tf.cumsum(x[:, :3], axis=1)

    spec = [tf.TensorSpec((None, 1300), tf.float32)]
    return export(path, body, spec, net=Weights(*[(1300, 1300)] * 40))


for times in (500, 5000):

    def _scaled(x, w, times=times):
        for _ in range(times):
            x = x * w
        return x[:, :3]

    _model(f"{times} scalings of half a million entries", (2**19,), _scaled, (2**19,))


for depth in (100, 150, 200, 255):
    for width in (4, 64):

        def _layers(x, *kernels):
            for kernel in kernels:
                x = tf.nn.softplus(x @ kernel)
            return x[:, :3]

        kernels = [(width, width)] * depth
        _model(f"{depth} layers of {width}", (width,), _layers, *kernels, signs=True)


def _negated(x):
    for _ in range(20_000):
        x = -x
    return x


def _one_by_one(x):
    return tf.concat([tf.nn.relu(x[:, i : i + 1]) for i in range(4000)], axis=1)[:, :3]


def _branches(x):
    total = x
    for i in range(400):
        total = total + tf.nn.relu(x * float(i + 1))
    return total[:, :3]


def _carried(x):
    for _ in range(60):
        x = tf.concat([x, tf.nn.relu(x[:, -1:])], axis=1)
    return x[:, -3:]


def _rolled(x, w):
    x = x @ w
    for _ in range(200):
        x = tf.concat([x[:, 1:], x[:, :1]], axis=1)
    return x[:, :3]


def _pooled(x):
    for _ in range(60):
        x = tf.nn.max_pool2d(x, 3, 1, "SAME")
    return _flat(x)[:, :3]


def _flipped(x, w):
    x = tf.nn.conv2d(x, w, 1, "SAME")
    for _ in range(300):
        x = tf.reverse(x, [1])
    return _flat(x)[:, :3]


_model("200 rotations of a dense map", (3400,), _rolled, (3400, 3400))
_model("60 max poolings of 64 × 64 × 3", (64, 64, 3), _pooled)
_model("300 reversals of a convolution", (64, 64, 3), _flipped, (3, 3, 3, 16))
_model("20,000 negations", (4,), _negated)
_model("4,000 layers side by side", (4000,), _one_by_one)
_model("400 branches in one sum", (1024,), _branches)
_model("60 layers beside what they read", (1024,), _carried)
