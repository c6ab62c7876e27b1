"""The version of a model that is read, and the fingerprint of all of it."""

from __future__ import annotations

import keras
import numpy as np
from keras_oracle import assert_reads_as, examples
from written_net import Net

from keras_curv.reading import served_model
from keras_curv.saved_model.files import ModelFiles

L = keras.layers


def test_a_serving_base_path_means_its_newest_version(tmp_path):
    nets = {version: Net(seed=version) for version in (1, 2, 10)}
    for version, net in nets.items():
        net.export(tmp_path / str(version))
    (tmp_path / "11").mkdir()  # an upload that has not arrived yet
    (tmp_path / "notes").mkdir()
    served = served_model.read(str(tmp_path))
    assert served.source == str(tmp_path / "10")
    assert_reads_as(served, nets[10].oracle(), examples((6,)))
    assert_reads_as(served_model.read(tmp_path / "2"), nets[2].oracle(), examples((6,)))


def test_no_part_of_a_fingerprint_runs_into_the_next(tmp_path):
    """Bytes missing from a file may stand at the end of the graph, as fields of no name."""
    data = tmp_path / "variables.data-00000-of-00001"
    data.write_bytes(b"weights")
    whole = ModelFiles(tmp_path, b"graph", b"index", (data,), {}).fingerprint()
    joined = b"graph" + data.name.encode() + b"weightsvariables.indexindex"
    assert ModelFiles(tmp_path, joined, None, (), {}).fingerprint() != whole
    data.write_bytes(b"weightsx")
    assert ModelFiles(tmp_path, b"graph", b"index", (data,), {}).fingerprint() != whole


def test_the_fingerprint_is_of_the_weights_too(tmp_path):
    for seed, name in ((1, "a"), (2, "b")):
        Net(seed=seed).export(tmp_path / name)
    graph_of_a = (tmp_path / "a" / "saved_model.pb").read_bytes()
    (tmp_path / "b" / "saved_model.pb").write_bytes(graph_of_a)
    first, second, again = (served_model.read(tmp_path / name).fingerprint for name in "aba")
    assert first == again != second


def test_stray_folders_beside_the_variables_do_not_stop_the_reading(tmp_path):
    Net().export(tmp_path / "model")
    (tmp_path / "model" / "variables" / ".ipynb_checkpoints").mkdir()
    served_model.read(tmp_path / "model")


def test_live_models_are_told_apart_by_all_that_was_read():
    def build(activation="softplus", head=None):
        keras.utils.set_random_seed(0)
        hidden = L.Dense(5, activation)
        return keras.Sequential([keras.Input((4,)), hidden, L.Dense(3, head)])

    kinds = [build(), build("tanh"), build(head="softmax"), build(head="sigmoid")]
    assert len({served_model.read(model).fingerprint for model in kinds}) == 4
    assert served_model.read(build()).fingerprint == served_model.read(kinds[0]).fingerprint


def test_a_fingerprint_knows_what_serving_may_lose():
    """Scales that cancel fold to the weights of no scales, and overflow on the way."""
    dense = keras.layers.Dense(2)
    plain = keras.Sequential([keras.Input((3,)), dense])
    scales = [keras.layers.Rescaling(2.0**100), keras.layers.Rescaling(2.0**-100)]
    scaled = keras.Sequential([keras.Input((3,)), *scales, dense], name=plain.name)
    first, second = (served_model.read(model) for model in (plain, scaled))
    np.testing.assert_array_equal(*(s.network.affines[0].kernel for s in (first, second)))
    assert first.fingerprint != second.fingerprint
