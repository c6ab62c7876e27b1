"""The loss of a training step, against float64 arithmetic without Keras."""

import keras
import numpy as np
import pytest
from loss_oracle import (
    L,
    assert_gradients,
    central_differences,
    certified_loss,
    crt_loss,
    curvature_of,
    dense_base,
    logits_of,
    one_step,
    penalised_loss,
    random_data,
    runner_up,
    weights_of,
    worst_point,
)

from keras_curv.training.models.crt_model import CRTModel
from keras_curv.training.models.regularizer import CurvatureRegularizer


@pytest.mark.parametrize(("sizes", "activation"), [((4, 7, 3), "tanh"), ((4, 5, 6, 3), "softplus")])
def test_a_step_of_the_regularizer_by_hand(sizes, activation):
    base, (x, y) = dense_base(sizes, activation), random_data()
    weights, gamma = weights_of(base), 0.3
    expected = central_differences(penalised_loss, weights, x, y, gamma, activation)
    loss, moved = one_step(CurvatureRegularizer(base, gamma), x, y)
    assert loss == pytest.approx(penalised_loss(weights, x, y, gamma, activation), rel=1e-5)
    assert_gradients(moved, expected)


@pytest.mark.parametrize("activation", ["tanh", "softplus"])
def test_a_step_of_crt_by_hand(activation):
    base, (x, y) = dense_base((4, 7, 3), activation, 0.7), random_data()
    weights, gamma, radius = weights_of(base), 0.3, 0.4
    rival = runner_up(logits_of(weights, x, activation), y)
    kappa = curvature_of(weights, activation)
    points = worst_point(weights, x, y, rival, kappa, radius, activation)
    loss = crt_loss(points, rival)
    value, moved = one_step(CRTModel(base, radius, gamma, loss="crt", attack_steps=60), x, y)
    assert value == pytest.approx(loss(weights, x, y, gamma, activation), rel=1e-4)
    assert_gradients(moved, central_differences(loss, weights, x, y, gamma, activation))


@pytest.mark.parametrize(
    ("sizes", "activation", "regime"),
    [
        ((4, 7, 3), "tanh", "some"),
        ((4, 7, 3), "softplus", "none"),
        *(((4, 5, 6, 3), "softplus", regime) for regime in ("all on the sphere", "some", "none")),
    ],
)
def test_a_step_of_the_certified_loss_by_hand(sizes, activation, regime):
    """On the sphere κ is not in the loss; inside the ball, all depends on it."""
    base, (x, y) = dense_base(sizes, activation), random_data()
    weights, gamma = weights_of(base), 0.0 if regime == "none" else 0.1
    kappa = curvature_of(weights, activation)
    # Where the attack ends in a ball that does not hold it back.
    rivals = (y + 1) % 3, (y + 2) % 3
    free = [worst_point(weights, x, y, t, kappa, 1e4, activation) for t in rivals]
    reach = np.linalg.norm(np.array(free) - x, axis=2)
    radius = {
        "all on the sphere": 0.3 * reach.min(),
        "some": (np.sort(reach, axis=None)[5:7]).mean(),  # well between two of the twelve
        "none": 1.1 * reach.max(),
    }[regime]
    args = (x, y, gamma, activation, radius)
    loss, moved = one_step(CRTModel(base, radius, gamma, attack_steps=200), x, y)
    assert loss == pytest.approx(certified_loss(weights, *args), rel=1e-4)
    assert_gradients(moved, central_differences(certified_loss, weights, *args))


def test_without_a_penalty_the_base_trains_bit_for_bit_as_alone():
    x, y = random_data(20)
    results = []
    for wrapped in (False, True):
        keras.utils.set_random_seed(3)
        base = keras.Sequential([keras.Input((4,)), L.Dense(7, "tanh"), L.Dropout(0.3), L.Dense(3)])
        model = CurvatureRegularizer(base, gamma=0.0) if wrapped else base
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss)
        history = model.fit(x, y, batch_size=8, epochs=3, verbose=0).history["loss"]
        results.append((base.get_weights(), history))
    (alone, losses), (together, other_losses) = results
    assert losses == other_losses
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)
