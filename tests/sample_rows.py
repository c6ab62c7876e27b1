"""Rows of a small run, for tests of what is written."""

from keras_curv.rows.row import Row

COUNT = 7
SETTINGS = {"saved_model": "m", "seed": 0, "batch_size": 2}


def row(index, radius=0.5):
    return Row(index, 1, 1, 2, radius, "CERTIFIED", 7, True, "all", "crc")
