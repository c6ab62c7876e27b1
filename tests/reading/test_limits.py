"""Models that are too large, or too much work, are refused before it is done."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hostile_models.work import CASES
from refused import spec

from keras_curv.errors import InputError
from keras_curv.lowering import chain, flow, graph
from keras_curv.lowering.error_ball import Ball
from keras_curv.lowering.rules import convolution, registry
from keras_curv.lowering.stencil import Stencil
from keras_curv.network import sparse_affine
from keras_curv.reading import served_model
from keras_curv.saved_model import limits


def read(body, *shape):
    """Reads a function of `x`, without TensorFlow's part."""
    function = tf.function(body).get_concrete_function(spec(None, *shape, name="x"))
    definition, output = function.graph.as_graph_def(), function.outputs[0].name
    return graph.read_network(definition, inputs={"x": shape}, output=output, source="the model")


W = np.linspace(-1.0, 1.0, 64, dtype=np.float32).reshape(8, 8)


@pytest.mark.parametrize("count", [1025, 3000])
def test_more_classes_than_can_be_compared_are_refused_by_number(count):
    v = np.ones((8, count), np.float32)
    with pytest.raises(InputError, match=f"has {count} classes, of which each .*at most 1024"):
        read(lambda x: tf.nn.softplus(x @ W) @ v, 8)


def test_products_are_charged_together(monkeypatch):
    """Each alone is small enough."""
    monkeypatch.setattr(graph, "NODE", 0)
    monkeypatch.setattr(graph, "OP", 0)
    monkeypatch.setattr(flow, "LAYER", 0)
    monkeypatch.setattr(limits, "WORK", 100_000)
    assert read(lambda x: x @ W @ W, 8)[0].sizes == (8, 8)
    with pytest.raises(InputError, match="op .*takes [0-9,]+ multiplications: with"):
        read(lambda x: x @ W @ W @ W @ W @ W @ W, 8)
    assert read(lambda x: x @ W @ W, 8)[0].sizes == (8, 8)


SMALL = ((graph, "NODE"), (graph, "OP"), (flow, "LAYER"))


@pytest.mark.parametrize(("module", "name"), SMALL)
def test_small_ops_and_layers_are_charged_too(module, name, monkeypatch):
    def body(x, many):
        for _ in range(many):
            x = tf.tanh(x)
        return x @ W

    monkeypatch.setattr(limits, "WORK", 10 * getattr(module, name))
    for other in set(SMALL) - {(module, name)}:
        monkeypatch.setattr(*other, 0)
    assert read(lambda x: body(x, 3), 8)[0].depth == 4
    with pytest.raises(InputError, match="takes [0-9,]+ multiplications: with what was read"):
        read(lambda x: body(x, 20), 8)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    "op",
    [
        lambda y, x: y + tf.reverse(x, [1]),
        lambda y, x: tf.concat([y[:, 1:], y[:, :1]], axis=1),
        lambda y, x: y * np.float32(1.5),
        lambda y, x: y + np.ones(8, np.float32),
        lambda y, x: tf.reverse(y, [1]),
    ],
    ids=["sum", "concatenation", "scaling", "shift", "reversal"],
)
def test_what_an_op_does_to_each_weight_is_charged(op, sparse, monkeypatch):
    """Nothing is charged here for the op itself."""
    for name in ("NODE", "OP", "PASS", "VECTOR_PASS"):
        monkeypatch.setattr(graph, name, 0)
    monkeypatch.setattr(flow, "LAYER", 0)
    monkeypatch.setattr(limits, "WORK", 100_000 if sparse else 400_000)
    if sparse:
        monkeypatch.setattr(flow, "SPARSE_FROM", 0)
        monkeypatch.setattr(sparse_affine, "DENSE_UP_TO", 0)

    def body(x, many):
        start = x if sparse else x @ W
        y = start + tf.nn.relu(x)
        for _ in range(many):
            y = op(y, start)
        return tf.nn.relu(y) @ W

    read(lambda x: body(x, 2), 8)
    with pytest.raises(InputError, match="takes [0-9,]+ multiplications: with what was read"):
        read(lambda x: body(x, 100 if sparse else 400), 8)


def test_layers_side_by_side_are_counted_together(monkeypatch):
    """None of them is before another."""

    def body(x, many):
        return tf.add_n([tf.nn.relu(x @ (W + i)) for i in range(many)])

    monkeypatch.setattr(limits, "TOTAL_ENTRIES", 8 * W.size)
    monkeypatch.setattr(chain, "TOTAL_ENTRIES", 10**6)
    read(lambda x: body(x, 3), 8)
    with pytest.raises(InputError, match="the network, in entries of all layers, is too large"):
        read(lambda x: body(x, 9), 8)


def test_an_op_without_a_rule_is_found_before_any_work(monkeypatch):
    monkeypatch.setattr(graph, "apply", lambda *_: pytest.fail("something was computed"))
    with pytest.raises(InputError, match="op Cumsum .*no rule"):
        read(lambda x: tf.cumsum(x @ W @ W, axis=1), 8)
    assert "Cumsum" not in registry.RULES


def test_constants_that_nobody_asks_for_again_are_let_go(monkeypatch):
    def body(x, many):
        total = tf.constant(W)
        for _ in range(many):
            total = total + W
        return x @ total

    monkeypatch.setattr(graph, "TOTAL_ENTRIES", 6 * W.size)
    read(lambda x: body(x, 30), 8)

    def kept(x):
        parts = [tf.constant(W) + float(i) for i in range(9)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        for part in parts:
            total = total + part
        return x @ total

    with pytest.raises(InputError, match="what constants are folded to"):
        read(kept, 8)


def test_a_norm_that_is_too_dear_is_a_looser_one(monkeypatch):
    taps = np.random.default_rng(0).normal(size=(3, 3, 2, 2))
    tight = Stencil(Ball.exact(taps)).norm
    monkeypatch.setattr(limits, "WORK", 0)
    assert tight < Stencil(Ball.exact(taps)).norm < np.inf


def test_sharper_norms_leave_most_of_the_work_to_what_must_be_done(monkeypatch):
    taps = np.random.default_rng(0).normal(size=(3, 3, 2, 2))
    monkeypatch.setattr(limits, "OPTIONAL", 37_500)
    with limits.one_budget():
        norms = [Stencil(Ball.exact(taps)).norm for _ in range(8)]
        limits.charge(limits.WORK - limits.OPTIONAL, "the rest")
    assert norms == sorted(norms) and norms[0] < norms[-1]


@pytest.mark.parametrize("sigma", [tf.identity, tf.tanh])
def test_the_matrices_of_convolutions_are_charged_before_they_are_made(sigma, monkeypatch):
    """Each is small enough alone; with nothing charged for nodes, ops and layers themselves."""
    for name in ("NODE", "OP", "PASS", "VECTOR_PASS"):
        monkeypatch.setattr(graph, name, 0)
    monkeypatch.setattr(flow, "LAYER", 0)
    monkeypatch.setattr(limits, "WORK", 30 * 2**20)
    kernel = np.random.default_rng(0).normal(size=(3, 3, 8, 8)).astype(np.float32)

    def body(x, many):
        for _ in range(many):
            x = sigma(tf.nn.conv2d(x, kernel, 1, "SAME"))
        return tf.reshape(x, (-1, 4 * 4 * 8))[:, :3]

    read(lambda x: body(x, 2), 4, 4, 8)
    made = []
    places = convolution.places_of
    monkeypatch.setattr(convolution, "places_of", lambda *args: made.append(1) or places(*args))
    with pytest.raises(InputError, match="takes [0-9,]+ multiplications: with what was read"):
        read(lambda x: body(x, 100), 4, 4, 8)
    assert len(made) < 20


def test_a_kernel_is_not_spread_over_more_than_an_image():
    kernel = np.ones((2, 2, 8, 8), np.float32)

    def body(x):
        y = tf.raw_ops.Conv2D(
            input=x, filter=kernel, strides=[1] * 4, padding="SAME", dilations=[1, 520, 520, 1]
        )
        return tf.reshape(y, (-1, 240 * 240 * 8))[:, :3]

    with pytest.raises(InputError, match="op Conv2D .*521 × 521 × 8 × 8 entries is too large"):
        read(body, 240, 240, 8)


def test_variables_are_counted_together(tmp_path, monkeypatch):
    path = CASES["work: 16 products with one matrix of 1024"](tmp_path / "model", None)
    monkeypatch.setattr(limits, "TOTAL_ENTRIES", 2**20 - 1)
    with pytest.raises(InputError, match="its variables, in entries, is too large: 1048576"):
        served_model.read(path)
