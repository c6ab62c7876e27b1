"""Requests that do not fit, or that no certificate is for, are rows with a reason."""

import logged
import numpy as np
import pytest
import several_inputs
from certified_requests import BAD, RADII, assert_rows_are, rows_of, run
from logged import content, field, predict, write

import keras_curv
from keras_curv.errors import InputError
from keras_curv.serving.requests import RequestLog


def shaped(sizes):
    """A tensor of floats that has no value, and this shape."""
    return b"\x08\x01" + field(2, b"".join(field(2, field(1, size)) for size in sizes))


def test_what_does_not_fit_is_a_row_and_no_certificate(base, versions, batches, tmp_path):
    (x,) = batches(1)
    records = [predict(x)]
    for record, _ in BAD.values():
        records += [record, predict(x)]
    rows = rows_of([write(tmp_path / "log", records)], versions)
    assert [row.record for row in rows] == list(range(len(records)))
    assert_rows_are(rows[0::2], base / "10", np.concatenate([x] * (len(BAD) + 1)))
    for row, (_, reason) in zip(rows[1::2], BAD.values(), strict=True):
        assert row.status == reason
        assert row.radius == 0.0 and row.prediction == -1 and row.method == ""


def test_a_refused_batch_counts_with_all_its_examples(base, batches, tmp_path):
    """Else a gate would pass where most of what is asked cannot be certified."""
    (x,) = batches(40)
    certified = keras_curv.certify(str(base / "10"), x, method="crown").radius
    one = x[[np.argmax(certified)]]
    refused = {
        "WRONG_DTYPE": predict(x.astype(np.float64)),
        "WRONG_SHAPE": predict(x[:, :1]),
        "MODEL_REFUSED": predict(x, version=9),
        "NO_VERSION": predict(x, version=4),
    }
    for name, record in refused.items():
        file = write(tmp_path / name, [predict(one), record])
        found = run(base, [file], radii=[float(certified.max()) / 2], required=0.5)
        assert found["examples"] == 41 and found["reasons"][name]["count"] == 40
        assert found["verdict"]["passed"] is False


@pytest.mark.parametrize("packed", ["", "GZIP"])
def test_a_few_bytes_do_not_make_many_rows(versions, tmp_path, packed):
    """Neither as a shape alone, of any size of examples, nor as values that repeat, nor packed."""
    for name, sizes in {"wide": (2**60, 3), "flat": (2**60, 0), "repeated": (2**13, 2, 3)}.items():
        tensor = shaped(sizes)
        file = write(tmp_path / name, [predict(tensor)], packed)
        with pytest.raises(InputError, match="with record 0 it has .* and 4096 are the most of a"):
            RequestLog([file], [versions]).survey()
    records = [predict(shaped((2**10, 2, 3)))] * 5
    found = RequestLog([write(tmp_path / "log", records, packed)], [versions]).survey()
    assert found.count == 2**12 and "with record 4 it has 5120 examples" in str(found.broken)


def test_examples_that_are_held_are_none_too_many(versions, tmp_path, batches):
    """A byte each is enough, of which every example that is held has four at least."""
    (x,) = batches(5000)
    for packed in ("", "GZIP"):
        file = write(tmp_path / "log", [predict(x)] * 2, packed)
        found = RequestLog([file], [versions]).survey()
        assert found.count == 10_000 and found.broken is None


def test_a_refusal_keeps_no_record(versions, tmp_path):
    """Of a record of 32 MiB, parsed, its traceback would keep a GiB."""
    file = write(tmp_path / "log", [predict(np.ones((2, 2, 3)), more=field(2, b"") * 300), b"\xff"])
    for request, reason in zip(
        RequestLog([file], [versions]).requests(), ("WRONG_INPUTS", "NOT_A_LOG"), strict=True
    ):
        (refusal,) = request.asked
        assert refusal.reason.name == reason
        assert refusal.__traceback__ is None and refusal.__context__ is None


def test_one_bad_example_of_a_batch(base, versions, batches, tmp_path):
    (x,) = batches(4)
    x[2, 1, 0] = np.nan
    rows = rows_of([write(tmp_path / "log", [predict(x)])], versions)
    assert rows[2].status == "NOT_FINITE_INPUT" and rows[2].radius == 0.0
    assert_rows_are(rows[:2] + rows[3:], base / "10", x[[0, 1, 3]])


def test_reasons_and_fractions(base, batches, tmp_path):
    """Refused requests count as not certified, skipped ones do not count."""
    (x,) = batches(3)
    records = [predict(x, version=1), *(record for record, _ in BAD.values())]
    found = run(base, [write(tmp_path / "log", records)])
    skipped = {"CLASSIFY", "REGRESS", "SESSION_RUN"}
    assert found["skipped"] == len(skipped)
    assert found["refused"] == len(BAD) - len(skipped)
    assert found["examples"] == 3 + found["refused"]
    certified = keras_curv.certify(str(base / "1"), x, method="crown").radius
    for radius in RADII:
        expected = np.sum(certified > radius) / found["examples"]
        assert found["certified_accuracy"][str(radius)] == pytest.approx(expected)
    assert {name for name, r in found["reasons"].items() if r["skipped"]} == skipped
    assert found["reasons"]["WRONG_SHAPE"]["detail"] == "(2, 3), not (n, 2, 3)"
    assert "Cos" in found["reasons"]["MODEL_REFUSED"]["detail"]
    assert set(found["versions"]) == {"", "1", "9", "10"}
    assert found["versions"]["1"]["examples"] == 3
    assert sum(entry["examples"] for entry in found["versions"].values()) == found["examples"]


def test_a_model_that_cannot_be_certified_at_all(base, batches, tmp_path):
    file = write(tmp_path / "log", [predict(x, version=9) for x in batches(1, 2)])
    for path in (base, base / "9"):
        with pytest.raises(InputError, match="Cos"):
            run(path, [file])
    with pytest.raises(InputError, match="does not exist"):
        run(base / "12", [file])


def test_a_model_of_several_inputs_wants_them_all(tmp_path):
    model = several_inputs.MODELS["joined"]()
    model.export(str(tmp_path / "model"), verbose=False)
    x = several_inputs.examples_of(model, count=2)
    alpha, short = (
        field(2, field(1, b"alpha") + field(2, content(part)))
        for part in (x["alpha"], x["alpha"][:1])
    )
    records = [predict(x["zeta"], "zeta", more=more) for more in (alpha, short, b"")]
    found = run(tmp_path / "model", [write(tmp_path / "log", records)])
    assert (found["examples"], found["refused"]) == (6, 4)


def test_a_model_of_another_input_loses_everything(base, batches, tmp_path):
    file = write(tmp_path / "log", [predict(x) for x in batches(3, 2)])
    logged.save(tmp_path / "other", 2, key="inputs")
    found = run(tmp_path / "other", [file], baseline=str(base), max_lost=0.99)
    assert found["examples"] == found["refused"] == 5
    assert (
        found["baseline"]["radii"]["0.05"]["lost"] == found["baseline"]["radii"]["0.05"]["baseline"]
    )
    assert found["verdict"]["passed"] is False
    same = run(base, [file], baseline=str(base), max_lost=0.0)
    assert same["verdict"]["passed"] and same["baseline"]["prediction_changed"] == 0
