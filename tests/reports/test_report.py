"""The HTML report: nothing in it is fetched, run or believed; the same run gives the same bytes."""

import base64
import html.parser
import pathlib
import re
import shutil
import subprocess

import keras
import numpy as np
import pytest
import tensorflow as tf
from scripts import call

from keras_curv import Smoothing, data
from keras_curv.attacks.closest import closest_points
from keras_curv.certificates.best_of import choose_method
from keras_curv.cli.certify import command
from keras_curv.data.examples import Examples
from keras_curv.errors import InputError
from keras_curv.network.network import Network
from keras_curv.reports.html import charts, page, pictures
from keras_curv.reports.html.cases import Case
from keras_curv.reports.html.report_data import ReportData
from keras_curv.reports.html.templates import ENVIRONMENT, visible
from keras_curv.reports.plot import last_radius
from keras_curv.reports.wording import percent
from keras_curv.rows.row import Row
from keras_curv.rows.tally import Tally
from keras_curv.runs.certify_examples import certify_examples

ROOT = pathlib.Path(__file__).resolve().parents[2]
DIGITS = str(ROOT / "saved_models" / "digits")
HOSTILE = "\"><img src=x onerror=alert(1)>&lt;'\u202e\n.npz"


class Page(html.parser.HTMLParser):
    """A parsed page; it fails where tags do not balance."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.open = [], "", []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.text += "" if "style" in self.open else text

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def require_self_contained(text):
    parsed = Page(text)
    names = {name for name, _ in parsed.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "base", "form", "a"}
    for _, attributes in parsed.tags:
        assert not any(key.startswith("on") or key in ("style", "href") for key in attributes)
    sources = [attributes["src"] for _, attributes in parsed.tags if "src" in attributes]
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "url(" not in text and "@import" not in text and "://" not in text
    policy = next(a for a in parsed.all("meta") if "http-equiv" in a)["content"]
    assert policy.startswith("default-src 'none';")
    return parsed


def require_accessible(parsed):
    assert parsed.all("html") == [{"lang": "en"}] and len(parsed.all("h1")) == 1
    assert all(attributes["alt"] for attributes in parsed.all("img"))
    assert all(a["role"] == "img" and a["aria-label"] for a in parsed.all("svg"))
    assert all(attributes["scope"] in ("row", "col") for attributes in parsed.all("th"))
    assert len(parsed.all("caption")) == len(parsed.all("table")) > 0


@pytest.fixture(scope="module")
def digits_report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    result = certify_examples(
        DIGITS,
        data.load("digits").limited(60),
        method="crc",
        batch_size=25,
        radii=(0.25, 0.5),
        output=str(folder / "rows.csv"),
        report=str(folder / "report.html"),
    )
    return folder, result


def dense(shape, classes=3, activation="softplus"):
    keras.utils.set_random_seed(4)
    layers = keras.layers
    return keras.Sequential(
        [keras.Input(shape), layers.Flatten(), layers.Dense(5, activation), layers.Dense(classes)]
    )


def report_of(folder, model, x, y=None, **options):
    path = folder / "report.html"
    examples = Examples.from_arrays("mine", x, y)
    certify_examples(model, examples, report=str(path), **options)
    return path.read_text(encoding="utf-8")


def test_the_report_is_self_contained_and_accessible(digits_report):
    folder, result = digits_report
    parsed = require_self_contained((folder / "report.html").read_text(encoding="utf-8"))
    require_accessible(parsed)
    assert len(parsed.all("svg")) == 1 + 10  # the curve, and a histogram of each class
    assert len(parsed.all("img")) == 3 * 12
    for fact in (
        result["fingerprint"],
        "digits test",
        "all (a certificate of the classifier)",
        "real arithmetic on the stored weights",
        "keras_curv.certify_examples",
        tf.__version__,
    ):
        assert fact in parsed.text
    for fraction in result["certified_accuracy"].values():
        assert percent(fraction) in parsed.text


def test_the_least_robust_are_shown_with_a_point_beyond_the_radius(digits_report):
    folder, _ = digits_report
    lines = (folder / "rows.csv").read_text().splitlines()[1:]
    rows = [Row.parse(line.split(",")) for line in lines]
    least = sorted((row.radius, row.index) for row in rows if row.status == "CERTIFIED")[:12]
    text = Page((folder / "report.html").read_text(encoding="utf-8")).text
    shown = re.findall(
        r"Example (\d+): predicted \d"
        r"Radius ([\d.]+) by crc, nearest rival \d. Predicted \d at distance ([\d.]+)\.(?!\d)",
        text,
    )
    assert [int(index) for index, _, _ in shown] == [index for _, index in least]
    for (_, radius, distance), (exact, _) in zip(shown, least, strict=True):
        assert float(radius) <= exact < float(distance) < 1.5 * exact


def test_the_same_run_gives_the_same_bytes_whole_or_resumed(digits_report, tmp_path):
    folder, _ = digits_report
    whole = (folder / "report.html").read_bytes()
    rows = (folder / "rows.csv").read_bytes()
    settings = (folder / "rows.csv.settings.json").read_text()
    for name, kept in (("some", len(rows) * 2 // 3), ("all", len(rows))):
        target = tmp_path / f"{name}.csv"
        target.write_bytes(rows[:kept])
        (tmp_path / f"{name}.csv.settings.json").write_text(settings)
        certify_examples(
            DIGITS,
            data.load("digits").limited(60),
            method="crc",
            batch_size=25,
            radii=(0.25, 0.5),
            output=str(target),
            resume=True,
            report=str(tmp_path / f"{name}.html"),
        )
        assert (tmp_path / f"{name}.html").read_bytes() == whole, name


def test_hostile_names_are_text(tmp_path):
    x, _ = data.load_all("digits")
    np.savez(tmp_path / HOSTILE, x=x[:3])
    shutil.copytree(DIGITS, tmp_path / HOSTILE[:-4])
    path = tmp_path / "report.html"
    certify_examples(
        str(tmp_path / HOSTILE[:-4]),
        data.load_npz(str(tmp_path / HOSTILE)),
        method="crc",
        report=str(path),
        command=["bin/certify", f"--inputs={HOSTILE}", "\udcff", "</style></pre><script>"],
    )
    text = path.read_text(encoding="utf-8")
    parsed = require_self_contained(text)
    assert "\u202e" not in text and "&lt;img" in text
    assert r"onerror=alert(1)>&lt;'\u202e\n.npz" in parsed.text
    assert len(parsed.all("img")) == 3 * 3  # none of theirs


def test_text_cannot_become_markup():
    nasty = "</p><script>alert('1')</script>\x00\u2028\ud800"
    text = ENVIRONMENT.from_string('<p title="{{ it }}">{{ it }}</p>').render(it=nasty)
    parsed = Page(text)
    assert [name for name, _ in parsed.tags] == ["p"]
    assert parsed.text == parsed.all("p")[0]["title"] == visible(nasty)
    text.encode("utf-8")  # a lone surrogate would not


SHAPES = {
    (1,): (False, "Entries: ("),
    (8,): (False, "; found: ("),
    (64,): (False, "neither images nor few numbers"),
    (1, 1): (True, "Black is"),
    (3, 5): (True, "white is no change"),
    (4, 3, 1): (True, "white is no change"),
    (4, 3, 3): (True, "mid-grey is no change"),
    (2, 2, 2): (False, "are no images"),
    (300, 2): (True, "only every so many pixels"),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_inputs_that_are_images_are_drawn(shape, tmp_path, rng):
    drawn, words = SHAPES[shape]
    x = rng.normal(size=(2, *shape)).astype(np.float32)
    parsed = require_self_contained(report_of(tmp_path, dense(shape), x, method="lipschitz"))
    require_accessible(parsed)
    assert words in parsed.text
    found = parsed.text.count(" at distance ")
    assert found == 2 or np.prod(shape) == 1  # a line of inputs may lie in one class
    assert len(parsed.all("img")) == (2 + 2 * found if drawn else 0)
    assert "Radii by predicted class" in parsed.text and "clean" not in parsed.text


def test_scaled_whole_numbers(tmp_path, rng):
    x = rng.integers(0, 256, (5, 4, 4), np.uint8)
    text = report_of(tmp_path, dense((4, 4)), x, input_scale=0.25, method="crc")
    assert "Black is 0 and white 255" in text and "examples × 0.25" in text


def test_nothing_correct(tmp_path, rng):
    model, x = dense((2, 2)), rng.normal(size=(5, 2, 2)).astype(np.float32)
    wrong = (np.asarray(model(x)).argmax(axis=1) + 1) % 3
    parsed = require_self_contained(report_of(tmp_path, model, x, wrong, method="crc"))
    assert "No example has a correct prediction" in parsed.text
    assert "misclassified" in parsed.text and len(parsed.all("img")) == 0


def row(index, radius, status="CERTIFIED", label=0):
    return Row(index, label, 0, 1, radius, status, 1, False, "all", "crc" if radius else "")


def rendered(rows, cases=(), **changed):
    report_data, tally = ReportData(), Tally((0.5,))
    report_data.add(rows)
    tally.add(rows)
    summary = {"saved_model": "m", "dataset": "d"} | tally.summary()
    summary |= {"rivals": "all", "guarantee": "real", "input_scale": 1.0, "input_shape": [2]}
    summary |= {"depth": 2, "classes": 2} | changed
    return require_self_contained(page.render(summary, {"version": "0"}, report_data, list(cases)))


def test_no_example_certified():
    rows = [row(i, 0.0, "UNPROVED") for i in range(3)]
    text = rendered(rows, [Case(r, np.zeros(2)) for r in rows]).text
    assert text.count("no positive radius could be proved, nearest rival 1") == 3
    assert text.count("No adversarial point was found") == 3


def test_infinite_radii_and_many_classes():
    parsed = rendered([row(i, np.inf, label=i) for i in range(40)])
    assert len(parsed.all("svg")) == 1 + 24 and "24 of 40 classes" in parsed.text


def test_what_is_no_certificate_says_so(tmp_path, rng):
    x = rng.normal(size=(4, 3)).astype(np.float32)
    single = report_of(tmp_path, dense((3,)), x, rivals="runner_up", method="crc")
    assert "This is not a certificate of the classifier" in single
    assert "so a point may be nearer than it" in single
    smoothing = Smoothing(0.1, samples=100)
    voted = report_of(tmp_path, dense((3,)), x, smoothing=smoothing)
    assert "not the model itself" in voted and "at distance" not in voted
    assert "are not searched for" in voted


def test_the_float32_guarantee_is_told(tmp_path, rng):
    x = rng.normal(size=(2, 3)).astype(np.float32)
    assert "no TF32, bfloat16" in report_of(
        tmp_path, dense((3,)), x, guarantee="float32", method="crc"
    )


def test_the_command_makes_the_report_again(script, capfd, tmp_path):
    def report(name, *words):
        path = tmp_path / name
        code, _, err = call(script, capfd, *words, "--report", path)
        assert code == 0, err
        return path.read_text(encoding="utf-8")

    inputs = tmp_path / "it's a <name>.npz"
    x, y = data.load_all("digits")
    np.savez(inputs, x=x[:6], y=y[:6])
    options = ("--inputs", inputs, "--radius", 0.25, "--radius", 0.4, "--method", "crown")
    first = report("a.html", *options, "--output", tmp_path / "rows.csv")
    shown = re.search(r"<pre><code>(.*?)</code></pre>", first).group(1)
    words = command()
    assert Page(shown).text == " ".join(map(page.shlex.quote, words))
    assert words[0] == "bin/certify" and words[-1] == "--report=report.html"
    assert report("b.html", *words[1:-1]) == first


def test_what_cannot_be_written_is_refused_before_the_work(tmp_path, rng):
    x = rng.normal(size=(2, 3)).astype(np.float32)
    examples = Examples.from_arrays("mine", x, None)
    for report, message in ((tmp_path / "no" / "r.html", "make it first"), (tmp_path, "directory")):
        with pytest.raises(InputError, match=message):
            certify_examples(None, examples, report=str(report))
    with pytest.raises(InputError, match="different files"):
        same = str(tmp_path / "same.html")
        certify_examples(None, examples, summary=same, report=same)


def test_the_least_robust_do_not_depend_on_batches(rng):
    radii = rng.integers(0, 30, 500) / 10.0  # with ties
    status = np.where(radii > 0.0, "CERTIFIED", np.where(rng.random(500) < 0.5, "UNPROVED", "TIED"))
    rows = [row(i, r, str(s)) for i, (r, s) in enumerate(zip(radii, status, strict=True))]
    correct = [r for r in rows if r.status != "TIED"]
    expected = sorted(correct, key=lambda r: (r.radius, r.index))[:12]
    for size in (1, 7, 500):
        report_data = ReportData()
        for start in range(0, 500, size):
            report_data.add(rows[start : start + size])
        assert report_data.least_robust == expected
        np.testing.assert_array_equal(report_data.radii, radii)


def test_examples_are_read_again_by_index(rng):
    x = rng.normal(size=(1000, 2))
    examples = Examples.from_arrays("mine", x, None)
    indices = [999, 3, 256, 255, 511]
    np.testing.assert_array_equal(examples.at(indices), x[indices])
    with pytest.raises(InputError, match="no example 1000 any more"):
        examples.at([3, 1000])


def test_pictures_decode_to_what_was_drawn(rng):
    pixels = rng.integers(0, 256, (5, 7, 3))
    np.testing.assert_array_equal(tf.io.decode_png(pictures.png(pixels)), pixels)
    x = np.array([[0.0, 1.0], [0.5, 2.0]])
    address = pictures.image(x, (0.0, 1.0))
    decoded = tf.io.decode_png(base64.b64decode(address.partition(",")[2])).numpy()
    np.testing.assert_array_equal(decoded[..., 0], [[0, 255], [128, 255]])
    address = pictures.difference(np.array([[0.0, 0.1], [-0.1, 0.0]]))
    decoded = tf.io.decode_png(base64.b64decode(address.partition(",")[2])).numpy()
    assert decoded.tolist() == [[[255] * 3, [213, 94, 0]], [[0, 114, 178], [255] * 3]]
    address = pictures.difference(np.array([[[0.2, -0.2, 0.0]]]))
    decoded = tf.io.decode_png(base64.b64decode(address.partition(",")[2])).numpy()
    assert decoded.tolist() == [[[255, 0, 128]]]


@pytest.mark.parametrize("count", [1, 5, 2000])
def test_the_curve_is_never_above_what_is_certified(count, rng):
    radii = np.where(rng.random(count) < 0.9, rng.exponential(size=count), 0.0)
    end = last_radius(radii)
    macros = ENVIRONMENT.get_template("macros.html.j2").module
    drawing = macros.drawing(charts.curve(radii, {"0.5": 0.5}, 0.9, "units"))
    path = next(a for a in Page(drawing).all("path"))["d"]
    steps = [(kind, float(value)) for kind, value in re.findall(r"([MHV ])([\d.]+)", path)]
    left, right = steps[0][1], steps[-1][1]
    base = max(float(a["y1"]) for a in Page(drawing).all("line") if a["class"] == "grid")
    top = min(float(a["y1"]) for a in Page(drawing).all("line") if a["class"] == "grid")
    column, y = end / 540, steps[1][1]
    starts = [left]
    levels = []
    for kind, value in steps[2:]:
        if kind == "H":
            levels.append((base - y) / (base - top))
            starts.append(value)
        y = value if kind == "V" else y
    for radius in rng.random(200) * end:
        here = left + (right - left) * radius / end
        drawn = levels[min(np.searchsorted(starts, here, side="right"), len(levels)) - 1]
        # Coordinates have one decimal.
        assert drawn <= np.mean(radii > radius - 0.1 * column) + 1e-3
        assert drawn >= np.mean(radii > radius + 1.1 * column) - 1e-3
    assert levels[-1] < 1e-3  # nothing is certified at the end


def test_histograms_count_everything(rng):
    radii = np.concatenate([np.zeros(3), rng.random(50), [np.inf]])
    counts = charts.histogram_counts(radii, 0.7)
    assert counts.sum() == 51 and counts[-1] >= np.sum(radii > 0.7)


def test_ticks_are_few_and_inside():
    for end in (1e-7, 0.03, 1.0, 6.0, 7.1, 59.9, 1e5):
        values = [value for value, _ in charts.ticks(end)]
        assert 2 <= len(values) <= 7 and values[0] == 0.0 and values[-1] <= end * (1 + 1e-6)


def test_the_closest_point_of_a_linear_network(rng):
    kernel, bias = rng.standard_normal((6, 4)), rng.standard_normal(4)
    network = Network.from_weights([kernel], [bias], "softplus")
    x = rng.standard_normal((20, 6))
    logits = x @ kernel + bias
    label = logits.argmax(axis=1)
    slope = np.linalg.norm(kernel[:, label].T[:, :, None] - kernel, axis=1)
    with np.errstate(invalid="ignore"):
        exact = np.nanmin((logits.max(axis=1, keepdims=True) - logits) / slope, axis=1)
    found = closest_points(network, x, label, np.zeros(20))
    assert np.all(found.prediction != label)
    assert np.all(found.distance >= exact * (1 - 1e-9))
    assert np.all(found.distance <= exact * 1.01)
    np.testing.assert_allclose(np.linalg.norm(found.point - x, axis=1), found.distance, rtol=1e-9)


@pytest.mark.parametrize(("activation", "method"), [("softplus", "crc"), ("relu", "crown")])
def test_points_found_contradict_no_certificate(activation, method, rng):
    sizes = (6, 9, 3)
    kernels = [rng.standard_normal(s) / np.sqrt(s[0]) for s in zip(sizes, sizes[1:], strict=False)]
    biases = [0.3 * rng.standard_normal(size) for size in sizes[1:]]
    network = Network.from_weights(kernels, biases, activation)
    x = rng.standard_normal((30, 6))
    label = network.logits(x).numpy().argmax(axis=1)
    result = choose_method(method, network).certify(x, label, rivals="all")
    found = closest_points(network, x, label, result.radius)
    reached = np.isfinite(found.distance)
    assert reached.mean() > 0.5 and np.all(found.prediction[reached] != label[reached])
    assert np.all(found.distance >= result.radius)
    assert np.median(found.distance[reached] / result.radius[reached]) < 1.5


def test_no_point_where_the_prediction_cannot_change():
    network = Network.from_weights([np.zeros((2, 2))], [np.array([1.0, 0.0])], "softplus")
    found = closest_points(network, np.ones((3, 2)), np.zeros(3, int), np.zeros(3))
    assert np.all(np.isinf(found.distance)) and np.all(found.point == 1.0)


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize(("scheme", "paper"), [(1, 255), (0, 23)], ids=["light", "dark"])
def test_a_browser_shows_it(digits_report, scheme, paper, tmp_path):
    folder, _ = digits_report
    shot = tmp_path / "shot.png"
    result = subprocess.run(
        [
            CHROMIUM,
            *QUIET,
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--blink-settings=preferredColorScheme={scheme}",
            "--window-size=1000,2400",
            f"--screenshot={shot}",
            (folder / "report.html").as_uri(),
        ],
        capture_output=True,
        timeout=120,
    )
    assert shot.exists(), result.stderr
    pixels = tf.io.decode_png(shot.read_bytes(), channels=3).numpy().astype(int)
    background = pixels[3, 3]
    assert abs(int(background.mean()) - paper) < 4
    inked = np.abs(pixels - background).max(axis=2) > 60
    bands = inked.reshape(8, -1, inked.shape[1]).mean(axis=(1, 2))
    assert np.all(bands > 0.01) and inked.mean() < 0.5  # ink all the way down, and room around it
    blue = np.array([0, 114, 178] if scheme else [86, 180, 233])
    assert np.sum(np.abs(pixels - blue).max(axis=2) < 12) > 1000  # curve and histograms
