"""Data sets by name: the digits need no package, and what cannot be fetched says so soon."""

import builtins
import shutil
import socket
import threading
import time

import numpy as np
import pytest
import requests
import tensorflow_datasets as tfds

from keras_curv import data
from keras_curv.data import tfds_images
from keras_curv.errors import InputError

FINGERPRINTS = {  # of what scikit-learn's `load_digits` gave
    "train": "4cbfb61d34565593926b788e0cefe42f39134119069e1dc6ea143535e5408947",
    "test": "3233cc45c9704a8d54ecdd0204c6590510c6d1c158cba6ca1a9fca6a84474377",
}


@pytest.mark.parametrize("split, count", [("train", 1437), ("test", 360)])
def test_the_digits_are_those_of_scikit_learn_without_it(split, count, monkeypatch):
    def without(name, *arguments, **options):
        assert name.partition(".")[0] != "sklearn"
        return imported(name, *arguments, **options)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without)
    digits = data.load("digits", split)
    x, y = digits.arrays()
    assert (digits.name, digits.count, digits.shape) == (f"digits {split}", count, (8, 8, 1))
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    assert x.min() == 0.0 and x.max() == 1.0
    assert digits.fingerprint == FINGERPRINTS[split]


def test_the_digits_have_two_splits():
    with pytest.raises(InputError, match="splits train and test. Received: 'all'"):
        data.load("digits", "all")


@pytest.fixture
def downloads(monkeypatch):
    """Counts the downloads that tfds begins, and ends them."""
    begun = []

    def download(self):
        begun.append(self.name)
        raise OSError("no download in a test")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", download)
    return begun


def refused(folder, name="fashion_mnist"):
    """The message, and the seconds that it took."""
    begun = time.monotonic()
    with pytest.raises(InputError) as caught:
        data.load(name, data_dir=str(folder))
    return str(caught.value), time.monotonic() - begun


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_a_host_that_is_not_found_is_asked_once(name, tmp_path, monkeypatch, downloads):
    asked = []

    def not_found(host, *_, **__):
        asked.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", not_found)
    message, seconds = refused(tmp_path, name)
    assert len(asked) == 1 and f"{asked[0]} cannot be reached" in message
    assert "Point --data_dir or TFDS_DATA_DIR to a prepared copy" in message
    assert downloads == [] and seconds < 5.0


def test_a_look_up_that_never_ends_is_left(tmp_path, monkeypatch, downloads):
    end = threading.Event()
    monkeypatch.setattr(tfds_images, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: end.wait(60) and [])
    message, seconds = refused(tmp_path)
    end.set()
    assert "fashion-mnist.s3-website.eu-central-1.amazonaws.com cannot be reached" in message
    assert downloads == [] and seconds < 5.0


def test_a_host_that_answers_anything_is_downloaded_from(tmp_path, monkeypatch, downloads):
    asked = []
    monkeypatch.setattr(requests, "head", lambda url, timeout: asked.append(url) or 503)
    message, _ = refused(tmp_path)
    assert "no download in a test" in message
    assert len(asked) == 1 and downloads == ["fashion_mnist"]


@pytest.mark.parametrize("by_hand", [True, False])
def test_files_that_are_there_need_no_host(by_hand, tmp_path, monkeypatch, downloads):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("asked"))
    folder = tmp_path / "downloads" / ("manual" if by_hand else "fashion_mnist")
    folder.mkdir(parents=True)
    for url, info in tfds.builder("fashion_mnist").url_infos.items():
        if by_hand:
            (folder / info.filename).touch()
        else:
            (folder / f"{info.filename}.INFO").write_text(f'{{"urls": ["{url}"]}}')
    message, _ = refused(tmp_path)
    assert "no download in a test" in message and downloads == ["fashion_mnist"]


def test_files_that_are_there_are_read_without_looking_for_code(tmp_path, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError

    made = tfds.testing.DummyMnist(data_dir=tmp_path)
    made.download_and_prepare()
    folder = tmp_path / "dummy_mnist"
    for version in ("3.9.0", "3.10.0", "4.0.0.incompleteA1"):
        shutil.copytree(made.data_path, folder / version)
        info = folder / version / "dataset_info.json"
        info.write_text(info.read_text().replace(str(made.version), version))
    monkeypatch.setattr(tfds, "builder", never)
    examples = tfds_images.load_tfds("dummy_mnist", "test", str(tmp_path))
    assert examples.fingerprint.startswith("tfds dummy_mnist 3.10.0 ")
    # As a run is resumed: in the middle, at the end, and with other data than it began with.
    rest = [list(examples.batches(8, start)) for start in (15, examples.count, 99)]
    assert [sum(len(x) for x, _ in some) for some in rest] == [examples.count - 15, 0, 0]
    x, y = examples.arrays()
    assert x.shape == (20, 28, 28, 1) and y.shape == (20,)
