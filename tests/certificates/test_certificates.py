"""What users do with certificates: print, pick, tabulate and draw them."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from keras_curv.certificates.certificate import Certificates, Status

RADIUS = np.array([0.5, 0.0, 0.25, np.inf, 0.0])
DISTANCE = np.array([0.75, np.inf, 0.5, np.inf, 0.1])
STATUS = np.array([Status.CERTIFIED, Status.MISCLASSIFIED, 0, 0, Status.UNPROVED], np.int64)


@pytest.fixture
def result():
    return Certificates(
        prediction=np.arange(5),
        radius=RADIUS,
        nearest_rival=np.array([1, -1, 0, -1, 3]),
        status=STATUS,
        gradient_evaluations=np.full(5, 7),
        adversarial_distance=DISTANCE,
        primal_equals_dual=np.zeros(5, bool),
        method=np.array(["crc", "", "crc", "lipschitz", ""]),
    )


def test_they_print_as_one_line(result):
    assert repr(result) == (
        "<Certificates: 5 examples: 3 certified, 1 misclassified, 1 unproved; "
        "certified radii 0.2500 to inf, mean inf>"
    )


@pytest.mark.parametrize("rows", [2, -1, slice(1, 4), [3, 0], RADIUS > 0.0, np.int64(0), []])
def test_some_of_them(rows, result):
    part, expected = result[rows], np.atleast_1d(np.arange(5)[rows])
    assert len(part) == len(expected)
    np.testing.assert_array_equal(part.prediction, expected)
    np.testing.assert_array_equal(part.method, result.method[expected])


def test_they_are_a_sequence(result):
    assert [one.prediction.item() for one in result] == [0, 1, 2, 3, 4]
    with pytest.raises(IndexError):
        result[5]


def test_batches_are_joined(result):
    joined = Certificates.joined([result[:2], result[2:2], result[2:]])
    for name, column in vars(result).items():
        np.testing.assert_array_equal(getattr(joined, name), column)


def test_a_table(result):
    table = result.to_pandas()
    assert list(table.columns) == list(vars(result)) and len(table) == 5
    assert table.status[1] == "MISCLASSIFIED" and table.radius[2] == 0.25
    assert table[table.status == "CERTIFIED"].radius.min() == 0.25


def drawn(axes):
    return {line.get_label(): line.get_xydata() for line in axes.lines}


def at(curve, radius):
    """The height of a step curve."""
    return curve[np.searchsorted(curve[:, 0], radius, side="right") - 1, 1]


def test_a_plot(result):
    axes = Figure().add_subplot()
    assert result.plot(axes) is axes
    curves = drawn(axes)
    for radius in (0.0, 0.1, 0.25, 0.3, 0.5, 0.6):
        assert at(curves["certified"], radius) == pytest.approx(
            100.0 * result.certified_accuracy(radius)
        )
    met = [at(curves["not broken"], radius) for radius in (0.05, 0.2, 0.6, 0.77)]
    assert met == pytest.approx([80.0, 60.0, 40.0, 20.0])
    assert axes.get_xlim()[1] == pytest.approx(0.75 * 1.05)


def test_a_plot_of_nothing(result):
    axes = Figure().add_subplot()
    assert set(drawn(result[:0].plot(axes))) == {"certified"}
    assert drawn(result[1].plot(Figure().add_subplot()))["certified"][:, 1].tolist() == [0.0, 0.0]


def test_a_plot_has_its_own_figure(result):
    assert drawn(result.plot())["certified"][0].tolist() == [0.0, 60.0]
