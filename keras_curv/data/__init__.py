"""Examples to certify or to train on, as streams: arrays, an .npz file, or a data set by name."""

from keras_curv.data.datasets import DATASETS, load, load_all
from keras_curv.data.examples import Examples
from keras_curv.data.npz import load_npz

__all__ = ["DATASETS", "Examples", "load", "load_all", "load_npz"]
