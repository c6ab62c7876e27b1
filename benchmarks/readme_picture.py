"""Draws the picture of the README: one digit, its certified ball and the closest adversarial point.

    python benchmarks/readme_picture.py --data_dir DIR

Three panels: the example with its certified radius; the closest point with another prediction that
a search found; and the plane through both, coloured by predicted class, with the certified ball.
The plane's second direction is the one in which the margin of the second nearest rival falls
fastest, so that more than one border shows.
"""

import math
import pathlib
import sys

import numpy as np
import tensorflow as tf
from absl import app, flags
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from keras_curv import Certifier, Network, data
from keras_curv.attacks.closest import closest_points

_MODEL = flags.DEFINE_string("saved_model", str(ROOT / "saved_models/mnist_3x2048"), "To certify.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where tfds finds MNIST.")
_INDEX = flags.DEFINE_integer("index", 3, "Of the test image.")
_OUTPUT = flags.DEFINE_string("output", str(ROOT / "docs/images/ball.png"), "The picture.")

_REACH = 2.1  # half the side of the plane's square, in certified radii
_POINTS = 401  # along a side
_DARK = "#1a1a1a"
_OWN = "#cfe0f5"
_OTHERS = ("#f6c7b6", "#f3e2a9", "#cde6c3", "#dccdea", "#c9c9c9", "#f0cfe0")


def main(_):
    x, _ = data.load("mnist", "test", data_dir=_DATA_DIR.value).limited(_INDEX.value + 1).arrays()
    image = x[_INDEX.value]
    certifier = Certifier(_MODEL.value, method="crc")
    network = certifier.served.network
    proved = certifier.certify(image[None])
    label, radius = int(proved.prediction[0]), float(proved.radius[0])

    x0 = image.reshape(1, -1).astype(np.float64)
    found = closest_points(network, x0, proved.prediction, proved.radius)
    distance, other = float(found.distance[0]), int(found.prediction[0])
    along = (found.point[0] - x0[0]) / distance
    across = second_direction(network, x0, label, other, along)
    steps = np.linspace(-_REACH, _REACH, _POINTS) * radius
    plane = predictions(network, x0[0], along, across, steps)

    figure = Figure(figsize=(10.4, 3.75), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1, 1.12])
    shown = math.floor(radius * 1e4) / 1e4  # a printed radius is rounded down
    draw_digit(left, image, f"a “{label}”", f"certified within radius {shown:.4f}")
    moved = found.point[0].reshape(image.shape)
    draw_digit(
        middle, moved, f"now a “{other}”", f"closest point found, at distance {distance:.4f}"
    )
    draw_plane(right, plane, steps, label, radius, distance)
    output = pathlib.Path(_OUTPUT.value)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=120)
    print(f"{output}: {label} within {shown:.4f}, {other} at {distance:.4f}")


def second_direction(
    network: Network, x0: np.ndarray, label: int, other: int, along: np.ndarray
) -> np.ndarray:
    """Returns the unit vector, orthogonal to `along`, toward the second nearest rival."""
    rivals = np.array([[t for t in range(network.classes) if t not in (label, other)]])
    evaluation = network.evaluate(tf.constant(x0), tf.constant([label]), tf.constant(rivals))
    margin, gradient = evaluation.margin.numpy()[0], evaluation.gradient.numpy()[0]
    nearest = int(np.argmin(margin / np.linalg.norm(gradient, axis=1)))
    across = -gradient[nearest]
    across -= (across @ along) * along
    return across / np.linalg.norm(across)


def predictions(
    network: Network, x0: np.ndarray, along: np.ndarray, across: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """Returns predicted classes on the grid, a row for each step across."""
    rows = [x0 + steps[:, None] * along + step * across for step in steps]
    return np.stack([network.logits(tf.constant(row)).numpy().argmax(axis=1) for row in rows])


def draw_digit(axes: Axes, image: np.ndarray, title: str, below: str) -> None:
    """Draws an image in grey; pixels outside [0, 1], which an l2 attacker may use, are clipped."""
    axes.imshow(image.reshape(28, 28), cmap="gray_r", vmin=0.0, vmax=1.0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=13, color=_DARK)
    axes.set_xlabel(below, fontsize=11, color=_DARK)
    axes.spines[:].set_color("0.75")


def draw_plane(
    axes: Axes, plane: np.ndarray, steps: np.ndarray, label: int, radius: float, distance: float
) -> None:
    """Draws the regions of the classes, the ball, the example and the adversarial point."""
    others = [c for c in np.unique(plane) if c != label]
    colour = dict(zip(others, _OTHERS, strict=False)) | {label: _OWN}
    classes = sorted(colour)
    index = np.searchsorted(classes, plane)
    extent = (steps[0], steps[-1], steps[0], steps[-1])
    axes.imshow(
        index,
        cmap=ListedColormap([colour[c] for c in classes]),
        vmin=-0.5,
        vmax=len(classes) - 0.5,
        extent=extent,
        origin="lower",
        interpolation="nearest",
    )
    for c in classes:
        axes.contour(steps, steps, plane == c, levels=[0.5], colors="0.45", linewidths=0.8)
    for c in others:
        rows, columns = np.nonzero(plane == c)
        if len(rows) > 0.01 * plane.size:  # less has no room for its name
            at = np.argmin((rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2)
            place = (steps[columns[at]], steps[rows[at]])
            axes.text(*place, str(c), fontsize=15, color="0.35", ha="center", va="center")
    angle = np.linspace(0.0, 2.0 * np.pi, 400)
    axes.fill(radius * np.cos(angle), radius * np.sin(angle), color="#1f5fa8", alpha=0.16)
    axes.plot(radius * np.cos(angle), radius * np.sin(angle), color="#1f5fa8", linewidth=1.8)
    axes.plot(0.0, 0.0, "o", color=_DARK, markersize=6)
    axes.plot(distance, 0.0, "X", color="#b3261e", markersize=9, markeredgecolor="white")
    axes.text(-0.1 * radius, 0.12 * radius, str(label), fontsize=15, color=_DARK, ha="right")
    axes.text(0.0, -0.62 * radius, "certified", fontsize=10, color="#1f5fa8", ha="center")
    axes.set_xlim(*extent[:2])
    axes.set_ylim(*extent[2:])
    axes.set_title("the plane through both", fontsize=13, color=_DARK)
    axes.set_xlabel("toward the adversarial point, l2", fontsize=11, color=_DARK)
    axes.tick_params(labelsize=8, colors="0.4")
    axes.spines[:].set_color("0.75")


if __name__ == "__main__":
    app.run(main)
