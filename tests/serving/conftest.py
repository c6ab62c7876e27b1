import logged
import numpy as np
import pytest
import tensorflow as tf

from keras_curv.serving.versions import Versions


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """Versions 1 and 10 of a model, and 9, which cannot be certified."""
    folder = tmp_path_factory.mktemp("models") / "small"
    logged.save(folder / "1", 1)
    logged.save(folder / "10", 2)
    logged.save(folder / "9", 3, activation=tf.cos)
    (folder / "11").mkdir()  # being copied
    return folder


@pytest.fixture(scope="session")
def versions(base):
    return Versions(str(base), method="crown")


@pytest.fixture
def batches(rng):
    """A factory of batches of inputs."""
    return lambda *sizes: [rng.standard_normal((n, 2, 3)).astype(np.float32) for n in sizes]
