"""Augmentation of training images: mirrored, shifted, elastically distorted.

All is a function of images and seed, so that a resumed run sees the same images as another.
"""

from __future__ import annotations

import tensorflow as tf

_SPACING = 7  # pixels at most between the points at which a displacement is drawn


def shifted(images: tf.Tensor, probability: float, seed: tf.Tensor) -> tf.Tensor:
    """Moves some images by −1, 0 or 1 pixels along each axis, zeros moved in.

    Args:
        images: `(n, height, width, channels)`.
        probability: of each image to be moved at all.
        seed: two integers.
    """
    count, height, width = tf.shape(images)[0], images.shape[1], images.shape[2]
    by = tf.random.stateless_uniform((count, 2), seed, -1, 2, tf.int32)
    moves = tf.random.stateless_uniform((count, 1), seed + 1) < probability
    by = tf.where(moves, by, 0)
    padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]])
    rows = by[:, :1] + tf.range(1, height + 1)
    columns = by[:, 1:] + tf.range(1, width + 1)
    padded = tf.gather(padded, rows, axis=1, batch_dims=1)
    return tf.gather(padded, tf.repeat(columns[:, None], height, 1), axis=2, batch_dims=2)


def mirrored(images: tf.Tensor, probability: float, seed: tf.Tensor) -> tf.Tensor:
    """Exchanges left and right of some images.

    Args:
        images: `(n, height, width, channels)`.
        probability: of each image to be mirrored.
        seed: two integers.
    """
    chosen = tf.random.stateless_uniform((tf.shape(images)[0], 1, 1, 1), seed) < probability
    return tf.where(chosen, images[:, :, ::-1], images)


def distorted(images: tf.Tensor, deviation: float, seed: tf.Tensor) -> tf.Tensor:
    """Distorts images as if drawn on rubber: each pixel takes its value from a place nearby.

    Displacements are normal at points at most seven pixels apart and bicubic between, values
    are bilinear; places outside of the image are moved to its edge.

    Args:
        images: `(n, height, width, channels)`.
        deviation: of the displacements at those points, in pixels.
        seed: two integers.

    Example:
        >>> image = tf.reshape(tf.linspace(0.0, 1.0, 196), (1, 14, 14, 1))
        >>> float(tf.reduce_max(abs(distorted(image, 0.5, seed=(0, 1)) - image))) < 0.3
        True

    Reference: Simard, Steinkraus & Platt (2003), "Best practices for convolutional neural
    networks applied to visual document analysis".
    """
    count, (height, width, channels) = tf.shape(images)[0], images.shape[1:]
    nodes = [-(-size // _SPACING) + 1 for size in (height, width)]
    field = deviation * tf.random.stateless_normal((count, *nodes, 2), seed)
    field = tf.image.resize(field, (height, width), "bicubic")
    here = tf.stack(tf.meshgrid(tf.range(height), tf.range(width), indexing="ij"), axis=-1)
    last = tf.constant([height - 1, width - 1])
    place = tf.clip_by_value(tf.cast(here, tf.float32) + field, 0.0, tf.cast(last, tf.float32))
    first = tf.cast(place, tf.int32)
    part = place - tf.cast(first, tf.float32)
    pixels = tf.reshape(images, (count, height * width, channels))

    def value(down: int, right: int) -> tf.Tensor:
        weight = tf.abs(1.0 - down - part[..., :1]) * tf.abs(1.0 - right - part[..., 1:])
        at = tf.minimum(first + [down, right], last)
        return weight * tf.gather(pixels, at[..., 0] * width + at[..., 1], batch_dims=1)

    return value(0, 0) + value(0, 1) + value(1, 0) + value(1, 1)
