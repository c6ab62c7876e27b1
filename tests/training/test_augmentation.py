"""Shifts and elastic distortions of training images."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_curv.training.trainable.augmentation import distorted, mirrored, shifted

SEED = tf.constant([3, 4], tf.int64)


def test_shifts_move_by_at_most_one_pixel(rng):
    images = rng.random((400, 5, 6, 2)).astype(np.float32)
    moved = shifted(tf.constant(images), 0.5, SEED).numpy()
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifts = [(i, j) for i in range(3) for j in range(3)]
    candidates = np.stack([padded[:, i : i + 5, j : j + 6] for i, j in shifts])
    matches = (candidates == moved).all(axis=(2, 3, 4))
    np.testing.assert_array_equal(matches.sum(axis=0), 1)
    counts = matches.sum(axis=1)
    # Half stay, and one in nine of the others: 222 of 400; the rest spread over eight moves.
    assert abs(counts[4] - 222) < 50 and np.delete(counts, 4).min() > 5


@pytest.mark.parametrize("shape", [(28, 28), (8, 8), (9, 13)])
def test_distortions_move_by_as_much_as_they_say_and_smoothly(shape):
    """The picture of a slope shows by how much each of its pixels was moved."""
    for axis in (0, 1):
        slope = np.expand_dims(np.arange(1000.0, 1000.0 + shape[axis]), 1 - axis)
        images = np.broadcast_to(slope, (500, *shape))[..., None].astype(np.float32)
        moved = (distorted(tf.constant(images), 0.5, SEED).numpy() - images)[..., 0]
        inside = np.moveaxis(moved, axis + 1, 1)[:, 3:-3]
        assert 0.3 < inside.std() < 0.55
        assert abs(inside.mean()) < 0.05
        assert np.abs(np.diff(inside, axis=1)).std() < 0.3 * inside.std()
        likeness = np.corrcoef(inside.reshape(500, -1))[0, 1:]
        assert np.median(np.abs(likeness)) < 0.8  # each image has displacements of its own


def test_a_distorted_image_has_its_own_values_only(rng):
    images = rng.random((50, 12, 10, 3)).astype(np.float32)
    moved = distorted(tf.constant(images), 3.0, SEED).numpy()
    slack = 1e-6
    assert np.all(moved >= images.min(axis=(1, 2), keepdims=True) - slack)
    assert np.all(moved <= images.max(axis=(1, 2), keepdims=True) + slack)
    # All channels are moved alike.
    grey = np.repeat(images[..., :1], 3, axis=-1)
    moved = distorted(tf.constant(grey), 3.0, SEED).numpy()
    np.testing.assert_array_equal(moved[..., 0], moved[..., 2])


def test_distortions_depend_on_the_seed_alone(rng):
    images = tf.constant(rng.random((4, 8, 8, 1)), tf.float32)
    np.testing.assert_array_equal(distorted(images, 0.0, SEED), images)
    np.testing.assert_array_equal(distorted(images, 1.0, SEED), distorted(images, 1.0, SEED))
    assert not np.array_equal(distorted(images, 1.0, SEED), distorted(images, 1.0, SEED + 1))


def test_some_images_are_mirrored(rng):
    images = rng.uniform(size=(40, 4, 5, 3)).astype(np.float32)
    found = mirrored(tf.constant(images), 0.5, SEED).numpy()
    changed = np.any(found != images, axis=(1, 2, 3))
    np.testing.assert_array_equal(found[changed], images[changed][:, :, ::-1])
    assert 8 < changed.sum() < 32
    np.testing.assert_array_equal(mirrored(tf.constant(images), 0.0, SEED), images)
