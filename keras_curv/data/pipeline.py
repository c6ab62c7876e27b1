"""An option that all pipelines of tf.data have here."""

from __future__ import annotations

import tensorflow as tf


def without_tuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the same elements, of a pipeline whose buffers keep their sizes.

    Tuning them is a thread beside each iterator that sleeps longer and longer, up to a minute, and
    does not always hear that the iterator is done: whoever drops it then waits for the thread.

    Example:
        >>> list(without_tuning(tf.data.Dataset.range(3)).as_numpy_iterator())
        [np.int64(0), np.int64(1), np.int64(2)]
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
