"""Examples to certify or to train on, as streams: arrays, .npz, TFRecords, or a set by name."""

from keras_curv.data.datasets import DATASETS, load, load_all
from keras_curv.data.examples import Examples
from keras_curv.data.npz import beside_x, load_npz
from keras_curv.data.tf_examples import TFExamples

__all__ = ["DATASETS", "Examples", "TFExamples", "beside_x", "load", "load_all", "load_npz"]
