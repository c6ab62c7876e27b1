"""Runs over logged requests, and what each row must say."""

import csv

import logged
import numpy as np
from logged import predict, write

import keras_curv
from keras_curv.certificates.certificate import Status
from keras_curv.rows.row import REQUEST_COLUMNS, Row, round_down
from keras_curv.serving.certify_requests import certify_requests
from keras_curv.serving.outcomes import certify_block
from keras_curv.serving.requests import RequestLog

RADII = (0.05, 0.2)


def rows_of(files, *sides, size=512, **options):
    log = RequestLog([str(file) for file in files], sides, **options)
    rows = []
    for block in log.blocks(size, 0, log.survey().count):
        rows += certify_block(block, len(rows))
    assert [row.index for row in rows] == list(range(len(rows)))
    assert all(Row.parse(row.cells(REQUEST_COLUMNS), REQUEST_COLUMNS) == row for row in rows)
    return rows


def run(model, files, **options):
    return certify_requests(
        str(model), [str(file) for file in files], **{"method": "crown", "radii": RADII} | options
    )


def assert_rows_are(rows, model, x, **options):
    """Exactly what `keras_curv.certify` says of these inputs."""
    expected = keras_curv.certify(str(model), x, method="crown", **options)
    assert len(rows) == len(x)
    assert any(expected.radius > 0.0)
    for i, row in enumerate(rows):
        assert row.prediction == expected.prediction[i]
        assert row.nearest_rival == expected.nearest_rival[i]
        assert repr(row.radius) == round_down(expected.radius[i])
        assert row.status == Status(expected.status[i]).name
        assert row.method == expected.method[i]
        assert row.rivals == "all" and row.detail == ""


X = np.full((1, 2, 3), 0.25, np.float32)
BAD = {
    "not a log": (b"\x0a\x05nonsense", "NOT_A_LOG"),
    "classify": (logged.field(2, logged.field(1, logged.field(1, logged.spec()))), "CLASSIFY"),
    "regress": (logged.field(3, b""), "REGRESS"),
    "session run": (logged.field(5, b""), "SESSION_RUN"),
    "version": (predict(X, version=4), "NO_VERSION"),
    "unfinished version": (predict(X, version=11), "NO_VERSION"),
    "negative version": (predict(X, version=-10), "NO_VERSION"),
    "label": (predict(X, label="stable"), "VERSION_LABEL"),
    "signature": (predict(X, signature="predict"), "NO_SIGNATURE"),
    "model": (predict(X, version=9), "MODEL_REFUSED"),
    "name": (predict(X, "y"), "WRONG_INPUTS"),
    "second input": (
        predict(X, more=logged.field(2, logged.field(1, b"z") + logged.field(2, b""))),
        "WRONG_INPUTS",
    ),
    "init": (predict(X, signature="__saved_model_init_op"), "WRONG_INPUTS"),
    "dtype": (predict(X.astype(np.float64)), "WRONG_DTYPE"),
    "shape": (predict(X[0]), "WRONG_SHAPE"),
    "no examples": (predict(X[:0]), "EMPTY_BATCH"),
    "content": (predict(logged.content(X)[:-4] + b"\x00" * 3), "NOT_A_LOG"),
    "NaN": (predict(np.where(np.arange(3) == 1, np.nan, X).astype(np.float32)), "NOT_FINITE_INPUT"),
    "infinite": (predict(X * np.float32(np.inf)), "NOT_FINITE_INPUT"),
}


def broken(path, records, damage):
    write(path, records)
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)


def read_rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))
