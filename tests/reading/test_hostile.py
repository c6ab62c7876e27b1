"""Malicious models are refused in a line, unloaded and unrun; so are broken graphs, indices."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest
import tensorflow as tf
from hostile_models import CASES, HARMLESS
from hostile_models.calls import chain
from hostile_models.index import block_of, table_of
from hostile_models.models import DATA, INDEX, Net, edited, export
from hostile_models.restoring import two_heads
from tensorflow.core.framework import graph_pb2

from keras_curv.errors import InputError
from keras_curv.lowering import graph
from keras_curv.reading import served_model
from keras_curv.saved_model import checkpoint, server
from keras_curv.saved_model.crc32c import masked_crc32c

# Ops are in test_unsafe_ops.py, objects in test_objects_with_code.py; what takes seconds to build
# is in benchmarks/hostile.py, and so is what only asks for much work: that is refused, or harmless.
_SLOW = ("op: ", "object: ", "message: ", "calls: 5,000", "depth: ", "work: ")
SAID = [name for name in CASES if name.startswith("said: ")]
QUICKLY_BUILT = [name for name in CASES if not name.startswith((*_SLOW, "said: "))]


def test_an_index_of_several_blocks_is_sound(tmp_path):
    """TensorFlow starts another block after 256 KiB."""
    names = [f"{'layer' * 20}/{i}" for i in range(9000)]
    prefix = tmp_path / "variables"
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.zeros(2)] * len(names),
    )
    index = prefix.with_suffix(".index").read_bytes()
    assert len(index) > 2**18
    checkpoint.entries_of(index, [8 * len(names)], "the variables")


def test_a_changed_byte_of_an_index_is_never_more_than_refused(tmp_path):
    """Checks made right again, so that what the bytes say is what is looked at."""
    path = export(tmp_path / "model")
    entries = list(checkpoint.index_entries((path / INDEX).read_bytes()))
    content, size = block_of(entries)[:-4], (path / DATA).stat().st_size
    rng = np.random.default_rng(0)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= rng.integers(1, 256)
        block = bytes(changed) + struct.pack("<I", masked_crc32c(bytes(changed)))
        with contextlib.suppress(InputError):
            checkpoint.entries_of(table_of(block), [size], "the model")


BROKEN_INDEX = {
    "numbers as references": "do not fit its shape",
    "a shape of 100,000 dimensions": "the rank of 'w/.*' is too large: 100002, at most 254",
    "a letter makes a key longer": "the length of a key is too large: 4097",
    "keys share all but two bytes": "the length of its keys is too large",
    "too many entries": "the number of its entries is too large: 65537",
    "one block 20,000 times": "a block does not lie behind the one before",
    "an entry within another": "a block lists a place where no entry starts",
    "data with a hole of 4 GiB": "a file has 4294967296 bytes, but its entries end at",
}
OTHERWISE = "a server and tf.saved_model.load would answer it otherwise"
SERVED_OTHERWISE = {
    "variables are restored crosswise": OTHERWISE,
    "the call is given other variables": OTHERWISE,
    "what is served is another function": OTHERWISE,
    "what a client sends is negated": "given 'negated', which is computed first",
    "its outputs go by other names": OTHERWISE,
    "signatures are a variable": "tf.saved_model.load would find no signatures",
    "objects give the function other variables": OTHERWISE,
    "two variables share a name": "two of its variables would be one",
    "a variable is restored twice": "restoring would assign .* in another way",
    "the init op assigns": "the init op 'NoOp' would run first",
    "another one changes variables": "changes or saves variables, and is not on the list",
    "another one changes variables, if it likes": "changes or saves variables, and is not on",
    "another one scatters into variables": "of the signature 'another', has a state",
    "another one writes files": "op WriteFile .* of the signature 'another', has a state",
    "another one calls Python": "op PyFunc .* of the signature 'another', has a state",
    "another one has an op that nobody knows": "op Mine>Relu .* has a state or is unknown",
    "what a client sends is left out": OTHERWISE,
    "restoring saves": "restoring would also run SaveV2",
    "two variables share a name in two containers": "two of its variables would be one",
    "in fewer bits": "'StatefulPartitionedCall' has for the runtime .graph_options., such as",
    "a call is rewritten": "says how the runtime is to rewrite what it calls",
    "a call has an attribute that nobody knows": "the attribute '_replaced_by'",
    "an op has a kernel of its own": "the attribute '_kernel'",
    "the logits are whole numbers": "one named 'logits'",
    "an output is said to be of another type": "'a' is of another type than is said",
    "for another tag": "must be tagged 'serve'",
}
REASONS = {
    **{f"index: {name}": f"the index is corrupt: .*{why}" for name, why in BROKEN_INDEX.items()},
    **{f"signature: {name}": why for name, why in SERVED_OTHERWISE.items()},
    **dict.fromkeys((name for name in CASES if name.startswith("name: ")), "node"),
    "name: as a node behind a call": "two nodes would be named .*PartitionedCall/k'",
    "name: as a node behind a call, that nobody asks for": "two nodes would be named",
    "name: as a part of a batch normalization": "as a part of the batch normalization",
    "loader: for a newer TensorFlow": "asks for a newer TensorFlow",
    "loader: for any but this TensorFlow": "asks for a newer TensorFlow",
    "loader: from a TensorFlow before all": "is too old",
    "loader: the main graph goes in a circle": "the main graph: the node '.*' depends on itself",
    "loader: a function goes in a circle": "function .*: the node '.*' depends on itself",
    "loader: waits for what is not there": "depends on 'nowhere', which is not there",
    "loader: waits before it takes anything": "waits for nodes before it takes its inputs",
    "loader: two variables of one key": OTHERWISE,
    "loader: inputs go by other names": OTHERWISE,
    "loader: Python names the inputs otherwise": "another order, in Python",
    "loader: Python takes the inputs by place": "not by name alone",
    "loader: Python would restore one variable from two places": "from several places|restored",
    "loader: Python calls another function": OTHERWISE,
    "loader: a signature is said twice": "signature_def twice",
    "loader: an output is said twice": "outputs twice",
    "loader: an attribute is said twice": "attr twice",
    "loader: an op that XLA must compile": "the attribute '_XlaMustCompile'",
    "loader: a constant captured from another node": OTHERWISE,
    "stored: with another shape of the same size": "stored with another shape than it has",
    "stored: as whole numbers": "stored as another type",
}


def test_every_reason_is_asked_for():
    assert set(REASONS) <= set(QUICKLY_BUILT)


@pytest.mark.parametrize("name", QUICKLY_BUILT)
def test_malicious_models_are_refused(name, tmp_path, nothing_is_loaded, nothing_is_run):
    path, canary = CASES[name](tmp_path / "model", tmp_path / "canary"), tmp_path / "canary"
    with pytest.raises(InputError, match=REASONS.get(name)) as caught:
        served_model.read(path)
    assert str(caught.value).isprintable()
    assert str(path) in str(caught.value)
    assert not canary.exists()


@pytest.mark.parametrize("name", SAID)
def test_shapes_that_are_not_as_is_said_are_refused(name, tmp_path, nothing_is_loaded):
    """TensorFlow believes what it is told, or does not load the graph."""
    path = CASES[name](tmp_path / "model", None)
    with pytest.raises(InputError, match="is said to be of shape .*, but is of shape"):
        served_model.read(path)


def test_a_second_head_of_the_same_shape_is_fine(tmp_path):
    """The changes of the cases above are refused, not the model that they change."""
    assert served_model.read(two_heads(tmp_path / "model")).network.classes == 3


@pytest.mark.parametrize("name", HARMLESS)
def test_only_what_a_server_answers_is_read(name, tmp_path, nothing_is_loaded):
    path = HARMLESS[name](tmp_path / "model", tmp_path / "canary")
    served = served_model.read(path)
    served.check(np.ones((2, 4), np.float32))
    first, last = served.network.affines
    np.testing.assert_array_equal(first.kernel, Net().w)
    np.testing.assert_array_equal(last.kernel, Net().v)
    assert not (tmp_path / "canary").exists()


def test_links_within_the_directory_are_followed(tmp_path):
    """A mounted volume has such links: names that lead to one version of all files."""
    path = export(tmp_path / "model")
    (path / "..data").mkdir()
    for name in ("saved_model.pb", "variables"):
        (path / name).rename(path / "..data" / name)
        (path / name).symlink_to(path / "..data" / name)
    (tmp_path / "link").symlink_to(path)
    assert served_model.read(tmp_path / "link").network.classes == 3


def test_what_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = export(tmp_path / "model")
    answer = server.answer

    def exchanged(*given):
        (path / "saved_model.pb").write_bytes(b"something else")
        return answer(*given)

    monkeypatch.setattr(server, "answer", exchanged)
    with pytest.raises(InputError):
        served_model.read(path)


def test_outputs_that_are_exchanged_are_refused(tmp_path):
    """A server answers "a" with what loading in Python calls "logits"."""
    path = export(tmp_path / "model", lambda x, net: {"a": net(x), "logits": -net(x)})
    with edited(path) as meta:
        outputs = meta.signature_def["serving_default"].outputs
        outputs["a"].name, outputs["logits"].name = outputs["logits"].name, outputs["a"].name
    with pytest.raises(InputError, match=OTHERWISE):
        served_model.read(path)


def read_nodes(*nodes):
    """Reads a graph written by hand: `(name, op, inputs…)`, the last one being the output."""
    definition = graph_pb2.GraphDef()
    for name, op, *inputs in nodes:
        definition.node.add(name=name, op=op, input=inputs)
    return graph.read_network(
        definition, inputs={"x": (4,)}, output=nodes[-1][0], source="the model"
    )


CYCLES = {
    "itself": [("x", "Placeholder"), ("mul", "Mul", "mul", "x")],
    "two": [("x", "Placeholder"), ("a", "Mul", "b", "x"), ("b", "Tanh", "a")],
    "handed on": [("x", "Placeholder"), ("i", "Identity", "i"), ("mul", "Mul", "i", "x")],
}


@pytest.mark.parametrize("case", CYCLES)
def test_graphs_with_a_cycle_are_refused(case):
    """Found by fuzzing: a KeyError, and a loop without an end."""
    with pytest.raises(InputError, match="the model.*depends on itself"):
        read_nodes(*CYCLES[case])


def test_an_input_that_is_missing_is_refused():
    with pytest.raises(InputError, match="the model.*cannot be read"):
        read_nodes(("x", "Placeholder"), ("tanh", "Tanh", "y"))


def test_constants_without_content_are_refused():
    definition = graph_pb2.GraphDef()
    definition.node.add(name="x", op="Placeholder")
    number = definition.node.add(name="half", op="Const").attr["value"].tensor
    number.dtype, number.tensor_content = tf.float32.as_datatype_enum, b"abc"
    definition.node.add(name="mul", op="Mul", input=["half", "x"])
    with pytest.raises(InputError, match="the model"):
        graph.read_network(definition, inputs={"x": (4,)}, output="mul", source="the model")


def test_a_good_index_is_sound_and_a_cut_or_changed_one_is_not(tmp_path):
    path = export(tmp_path / "model")
    index, size = (path / INDEX).read_bytes(), (path / DATA).stat().st_size
    checkpoint.entries_of(index, [size], "the model")
    for end in range(0, len(index), 7):
        with pytest.raises(InputError, match="the model"):
            checkpoint.entries_of(index[:end], [size], "the model")
    with pytest.raises(InputError, match="outside of its file"):
        checkpoint.entries_of(index, [size - 1], "the model")


def test_text_of_the_model_cannot_break_the_line_or_fill_the_screen():
    assert str(InputError("op a\nb\x1b[2J\u202e")) == r"op a b\x1b[2J\u202e"
    assert len(str(InputError("x" * 10**6))) < 13_000


def test_a_long_chain_is_matched_in_linear_time():
    """Each of the products looks behind all of the identities."""
    nodes = [("x", "Placeholder")]
    for index in range(1500):
        nodes.append((f"i{index}", "Identity", nodes[-1][0] if index else "x"))
    chain = nodes[-1][0]
    nodes += [(f"m{index}", "Mul", chain, chain) for index in range(1500)]
    nodes.append(("end", "Sinh", "all"))
    nodes.insert(-1, ("all", "AddN", *(name for name, op, *_ in nodes if op == "Mul")))
    with pytest.raises(InputError, match="op Sinh .*no rule"):
        read_nodes(*nodes)


def test_the_limits_let_calls_of_a_usual_depth_pass(tmp_path):
    path = chain(tmp_path / "model", 20, 1)
    assert served_model.read(path).network.classes == 3
