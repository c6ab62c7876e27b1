"""Eager, as a graph, by XLA, in half precision: the same training."""

import functools

import keras
import numpy as np
import pytest
from small_training import assert_same, build, data, fit


def _model(kind, optimizer="adam", run_eagerly=False, **options):
    ramp_steps = 4 if kind == "certified" else 0
    return build(kind, optimizer, ramp_steps=ramp_steps, run_eagerly=run_eagerly, **options)


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("penalty", [{"run_eagerly": True}]),
        ("certified", [{"jit_compile": True}, {"run_eagerly": True}]),
    ],
)
def test_compiled_by_xla_and_eager_are_the_same(kind, others):
    """Full batches are traced once: a step that made variables would be traced twice."""
    x, y = data(16)
    plain, traces = _model(kind), []
    step = plain.train_step
    plain.train_step = lambda data: traces.append("train") or step(data)
    losses = fit(plain, x, y, epochs=2)["loss"]
    assert traces == ["train"]
    for options in others:
        other = _model(kind, **options)
        # float32, in another order, through four steps of Adam, which divides by small gradients.
        np.testing.assert_allclose(fit(other, x, y, epochs=2)["loss"], losses, rtol=1e-4)
        assert_same(plain.base, other.base, atol=1e-4)


def test_a_ragged_last_batch_is_traced_once():
    x, y = data(20)  # 8, 8, 4
    model, traces = _model("certified"), []
    step, test = model.train_step, model.test_step
    model.train_step = lambda data: traces.append("train") or step(data)
    model.test_step = lambda data: traces.append("test") or test(data)
    model.make_train_function(force=True)
    model.make_test_function(force=True)
    fit(model, x, y, validation_data=(x, y))
    first = list(traces)
    # Keras traces once for a known batch and once for any.
    assert 1 <= first.count("train") <= 2 and 1 <= first.count("test") <= 2
    fit(model, x, y, epochs=3, validation_data=(x, y))
    fit(model, x[:13], y[:13], validation_data=(x[:11], y[:11]))
    assert traces == first


def test_several_steps_an_execution():
    x, y = data(20)
    one, several = _model("certified"), _model("certified", steps_per_execution=3)
    fit(one, x, y, epochs=2)
    fit(several, x, y, epochs=2)
    assert several.curvature.steps.numpy() == 6
    assert_same(one, several, atol=1e-6)  # float32


@functools.cache
def _in_single_precision(kind):
    return fit(_model(kind, run_eagerly=True), *data(20), epochs=3)


@pytest.mark.parametrize(
    ("kind", "policy", "options"),
    [
        ("penalty", "mixed_float16", {}),
        ("certified", "mixed_float16", {"run_eagerly": True}),
        ("certified", "mixed_bfloat16", {"run_eagerly": True}),
    ],
)
def test_mixed_precision(kind, policy, options):
    x, y = data(20)
    keras.config.set_dtype_policy(policy)
    try:
        model = _model(kind, **options)
    finally:
        keras.config.set_dtype_policy("float32")
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")
    assert {variable.dtype for variable in model.curvature.variables} == {"float32", "int32"}
    assert model.base.compute_dtype == policy.removeprefix("mixed_")
    before = model.base.get_weights()
    history = fit(model, x, y, epochs=3)
    for name in ("loss", "curvature"):
        # Eight bits of bfloat16, eleven of float16.
        np.testing.assert_allclose(history[name], _in_single_precision(kind)[name], rtol=3e-2)
    assert all(np.any(a != b) for a, b in zip(before, model.base.get_weights(), strict=True))
    assert all(np.isfinite(variable).all() for variable in model.get_weights())
    assert model(x[:2]).dtype == policy.removeprefix("mixed_")


def test_loss_scaling_keeps_the_ramp():
    """A step that is skipped because of an overflow does not count."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = _model("certified", keras.optimizers.SGD(1e-6))
    finally:
        keras.config.set_dtype_policy("float32")
    x, y = data(8)
    distances = [fit(model, x, y)["attack_distance"][0] for _ in range(2)]
    assert distances[0] == pytest.approx(0.3 * 0.05, rel=1e-2)  # half precision of the attack
    steps = int(model.optimizer.iterations.numpy())
    risen = fit(model, x, y)["attack_distance"][0]
    assert risen == pytest.approx(0.3 * (0.05 + 0.95 * steps / 4), rel=2e-2)
