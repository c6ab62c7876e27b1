"""Well-formed models in which tensors are multiplied, of numbers and sizes chosen to do harm."""

from __future__ import annotations

import tensorflow as tf

from hostile_models.models import cases, export

CASES, case = cases()


def _model(name, body, dim=4):
    """A case whose `body(x, net)` makes two columns or more; of any size it may be certified."""
    spec = [tf.TensorSpec((None, dim), tf.float32)]
    case(f"work: product: {name}")(lambda path, _: export(path, body, spec))


def _normalised(x, epsilon, before=1.0, after=1.0):
    x = before * x
    x = x - tf.reduce_mean(x, axis=1, keepdims=True)
    variance = tf.reduce_mean(x * x, axis=1, keepdims=True)
    return after * x * tf.math.rsqrt(variance + epsilon)


for epsilon in (0.0, 1e-38, 1e-12, 1e30, -1.0, float("inf")):
    _model(f"a layer norm of epsilon {epsilon}", lambda x, _, e=epsilon: _normalised(x, e))
for before, after in ((1e18, 1.0), (1e-18, 1.0), (1e-30, 1e30), (0.0, 1.0), (1.0, 1e38)):
    _model(
        f"a layer norm of {before} times the input, times {after}",
        lambda x, _, a=before, b=after: _normalised(x, 1e-3, a, b),
    )


def _norms(x, net, times):
    for _ in range(times):
        x = _normalised(x @ net.square, 1e-3)
    return x


for times in (3, 20, 200):
    _model(f"{times} layer norms", lambda x, net, n=times: _norms(x, net, n))

for scale in (1e2, 1e4, 1e30, -1e8):
    _model(
        f"a softmax of {scale} times the input",
        lambda x, net, s=scale: tf.nn.softmax(s * x @ net.square) * x,
    )


def _unshifted(x, scale):
    powers = tf.exp(scale * x)
    return x * powers / tf.reduce_sum(powers, axis=1, keepdims=True)


for scale in (1.0, 90.0, 1e6):
    _model(
        f"a softmax of {scale} times the input, not shifted", lambda x, _, s=scale: _unshifted(x, s)
    )
_model("a softmax over 2,000 entries", lambda x, _: (tf.nn.softmax(x) * x)[:, :3], 2000)

for scale in (1e2, 1e20, -1e20):
    _model(f"a gate as steep as {scale}", lambda x, _, s=scale: x * tf.nn.sigmoid(s * x))

for times in (5, 12, 60):

    def _powers(x, net, times=times):
        for _ in range(times):
            x = x * x
        return x @ net.square

    _model(f"{times} squares of squares", _powers)

_model("a quotient by what may be 0", lambda x, _: x / (x - 0.5))
_model("a quotient by a square", lambda x, _: x / (x * x))
_model("a quotient by itself", lambda x, _: x / x + 0.1 * x)
_model("a root of what may be negative", lambda x, _: x * tf.math.rsqrt(x))
_model("a quotient by a tiny gate", lambda x, _: x / tf.nn.sigmoid(-1e3 * tf.abs(x) - 80.0))
_model("products that cancel", lambda x, net: x * (x @ net.square) - (x @ net.square) * x + x)
_model("a sum of products, 1e30 and its negative", lambda x, _: 1e30 * x * x - 1e30 * x * x + x)


def _steps(x, net, times):
    state = 0.1 * x
    for _ in range(times):
        gate = tf.nn.sigmoid(state @ net.square + x)
        state = gate * state + (1.0 - gate) * tf.tanh(x)
    return state


for times in (4, 40, 400):
    _model(f"{times} gated steps", lambda x, net, n=times: _steps(x, net, n))


def _attended(x, tokens, scale):
    x = tf.reshape(x, (-1, tokens, 4))
    weights = tf.nn.softmax(scale * tf.matmul(x, x, transpose_b=True))
    return tf.reduce_sum(tf.matmul(weights, x), axis=1)


for tokens, scale in ((2, 1.0), (2, 1e15), (16, 0.5), (64, 0.5), (1000, 0.5)):
    _model(
        f"attention of {tokens} tokens to themselves, {scale} times",
        lambda x, _, t=tokens, s=scale: _attended(x, t, s),
        4 * tokens,
    )
for size in (300, 3000):
    _model(
        f"all {size} × {size} products of entries",
        lambda x, _: tf.reduce_sum(x[:, :, None] * x[:, None, :], axis=2)[:, :3],
        size,
    )
