"""Branching models as chains: what is carried, how large layers are kept, and what is refused."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from branching_models import BRANCHING
from keras_oracle import randomize

from keras_curv.certificates.lipschitz import LipschitzCertificate
from keras_curv.errors import InputError
from keras_curv.lowering import chain
from keras_curv.network import sparse_affine
from keras_curv.network.unitwise import IDENTITY
from keras_curv.reading import served_model
from keras_curv.saved_model import limits
from keras_curv.serving.certified_signature import certified_serving

L = keras.layers


def test_only_what_is_read_later_is_carried_and_only_so_far():
    given = keras.Input((8,))
    h = L.Dense(5, "tanh")(given)
    h = L.Concatenate()([L.Dense(4, "tanh")(h), given[:, 2:5]])
    model = randomize(keras.Model(given, L.Dense(3)(L.Dense(6, "tanh")(h))))
    network = served_model.read(model).network
    assert network.sizes == (8, 5 + 3, 4 + 3, 6, 3)
    assert [sigma.name for sigma in network.activations] == [
        "tanh × 5, identity × 3",
        "tanh × 4, identity × 3",
        "tanh",
    ]
    # What is carried is exact, in real arithmetic and as served.
    carried = network.affines[0].kernel[:, 5:]
    np.testing.assert_array_equal(carried, np.eye(8)[:, 2:5])
    assert not network.affines[0].served_kernel_error[:, 5:].any()
    assert network.activations[0].parts[1][0] is IDENTITY


@pytest.mark.parametrize(
    "name, affords",
    [
        ("resnet, relu", True),
        ("densenet", True),
        ("max pooling, same", True),
        ("inception", True),
        ("inception", False),
    ],
)
def test_large_layers_stay_sparse(name, affords, monkeypatch):
    if not affords:  # eigenvalues of its dense parts: cheaper bounds do
        monkeypatch.setattr(limits, "OPTIONAL", 0)
    model = BRANCHING[name]()
    dense = served_model.read(model).network
    for module in (sparse_affine, chain):
        monkeypatch.setattr(module, "DENSE_UP_TO", 600)
    sparse = served_model.read(model).network
    assert sum(affine.is_sparse for affine in sparse.affines) > 1
    x = np.random.default_rng(1).normal(size=(4, dense.dim))
    np.testing.assert_allclose(sparse.logits(x), dense.logits(x), rtol=1e-9)
    for one, other in zip(sparse.affines, dense.affines, strict=True):
        if one.is_sparse:
            assert one.norm >= np.linalg.norm(other.kernel, 2)
            assert one.magnitude_norm >= np.linalg.norm(np.abs(other.kernel), 2)
            np.testing.assert_allclose(one.kernel.toarray(), other.kernel, atol=1e-12)
    found = LipschitzCertificate(sparse).certify(x).radius
    assert np.all(found > 0.0)


def up_and_down():
    """Returns a small U-net: what is carried past its middle makes every matrix larger."""
    given = keras.Input((8, 8, 2))
    high = L.Conv2D(3, 3, padding="same", activation="relu")(given)
    low = L.Conv2D(4, 3, padding="same", activation="relu")(L.MaxPooling2D()(high))
    both = L.Concatenate()([high, L.UpSampling2D()(low)])
    last = L.Conv2D(2, 3, padding="same", activation="relu")(both)
    return randomize(keras.Model(given, L.Dense(3)(L.Flatten()(last))))


def test_a_network_of_too_many_dense_entries_has_sparse_layers(monkeypatch):
    model = up_and_down()
    dense = served_model.read(model).network
    assert not any(affine.is_sparse for affine in dense.affines)
    entries = sum(affine.kernel.size for affine in dense.affines)
    monkeypatch.setattr(chain, "TOTAL_ENTRIES", entries // 2)
    sparse = served_model.read(model).network
    assert any(affine.is_sparse for affine in sparse.affines)
    x = np.random.default_rng(1).normal(size=(4, dense.dim))
    np.testing.assert_allclose(sparse.logits(x), dense.logits(x), rtol=1e-9)
    np.testing.assert_allclose(sparse.logits(x), model(x.reshape(4, 8, 8, 2)), rtol=1e-4, atol=1e-4)
    for one, other in zip(sparse.affines, dense.affines, strict=True):
        assert one.norm >= (1.0 - 1e-12) * np.linalg.norm(other.kernel, 2)


def test_too_much_to_carry_is_refused(monkeypatch):
    monkeypatch.setattr(chain, "STORED_ENTRIES", 4)
    with pytest.raises(InputError, match="what is carried past layers.* too large: 20, at most 4"):
        served_model.read(BRANCHING["residual, tanh"]())


def test_there_is_no_certified_signature_where_branches_meet(tmp_path):
    with pytest.raises(InputError, match="branches meet"):
        certified_serving(BRANCHING["residual, tanh"](), tmp_path / "model")


def test_what_is_not_read_any_more_is_not_carried():
    x = keras.Input((6,))
    hidden = x
    for _ in range(4):
        new = keras.layers.Dense(1, "tanh")(hidden[:, -2:])
        hidden = keras.layers.Concatenate()([hidden, new])
    model = keras.Model(x, keras.layers.Dense(3)(hidden[:, -2:]))
    network = served_model.read(model).network
    assert max(network.sizes[1:]) < 6
    points = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    np.testing.assert_allclose(network.logits(points), model(points), rtol=1e-5, atol=1e-6)
    assert np.all(LipschitzCertificate(network).certify(points).radius > 0.0)
