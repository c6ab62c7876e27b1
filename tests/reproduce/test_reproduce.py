"""Tables of the paper again: what is trained and measured, written down, resumed, shared."""

import csv
import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest
import scripts
import tensorflow as tf
import tensorflow_datasets as tfds

from keras_curv import InputError, data
from keras_curv.certificates.crc.success_rates import success_rates
from keras_curv.certificates.smoothing.smoothing import SmoothedClassifier
from keras_curv.reproduce import measurements, recipes, tables, write
from keras_curv.reproduce import reproduce as run
from keras_curv.reproduce.measurements import COLUMNS, Subject
from keras_curv.reproduce.write import Result
from keras_curv.training.run import trainer as training_run

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = "fashion_mnist_0.5"


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """A data set of Fashion-MNIST's shape and format: noise around one image for each class."""
    folder = tmp_path_factory.mktemp("tfds")
    rng = np.random.default_rng(0)
    means = rng.integers(0, 256, (10, 28, 28, 1))

    def images(count):
        labels = np.arange(count) % 10
        noisy = means[labels] + rng.integers(-20, 21, (count, 28, 28, 1))
        pixels = np.clip(noisy, 0, 255).astype(np.uint8)
        return tf.data.Dataset.from_tensor_slices({"image": pixels, "label": labels})

    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(28, 28, 1)),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
    )
    tfds.dataset_builders.store_as_tfds_dataset(
        name="fashion_mnist",
        version="3.0.1",
        features=features,
        split_datasets={"train": images(600), "test": images(50)},
        data_dir=str(folder),
    )
    return str(folder)


@pytest.fixture
def short(monkeypatch):
    """Two networks of the table: ours and COAP's."""
    chosen = [row for row in tables.rows(NAME) if row.layers == 2]
    chosen = [row for row in chosen if row[1:3] in (("softplus", "certified"), ("relu", "coap"))]
    monkeypatch.setattr(tables, "rows", lambda name: chosen)
    return chosen


def test_the_paper_is_there_in_full():
    """Figures that a reader can look up."""
    counts = {name: len(tables.rows(name)) for name in tables.TABLES}
    assert counts["success"] == 14 and counts["crt_gamma"] == counts["penalty_gamma"] == 38
    assert counts["mnist_1.58"] == 17 + 4 and counts["adversarial"] == 18
    rows = {row[:4]: row.figures for row in tables.rows("mnist_1.58")}
    assert rows[2, "softplus", "crt", 0.01] == {"clean": 98.68, "certified": 69.79}
    assert rows[4, "relu", "coap", None] == {"clean": 90.17, "certified": 44.66}
    assert rows[2, "softplus", "certified", None] == {}
    targets = {row[:3]: row.figures for row in tables.rows("targets")}
    assert targets[2, "relu", "plain"]["crc_least"] == 1.04883


@pytest.mark.parametrize("name", tables.TABLES)
def test_every_row_has_a_recipe_and_every_column_a_measure(name):
    table = tables.get(name)
    assert set(table.columns) <= set(COLUMNS) and set(table.plot) <= set(table.columns)
    for row in tables.rows(name):
        assert set(row.figures) <= set(table.columns)
        recipe = recipes.recipe(table, row)
        assert (recipe.layers, recipe.activation, recipe.loss) == row[:3]
        assert recipe.width == 1024
        if row.training in ("crt", "penalty"):
            assert recipe.gamma == row.weight
        attacked = row.training not in ("plain", "penalty")
        assert recipe.radius == (table.radius if attacked else None)


@pytest.mark.slow
def test_a_table(stand_in, short, tmp_path, monkeypatch):
    """Written down; again, from the figures alone; with a figure lost, that one is measured."""
    files = run.reproduce(NAME, str(tmp_path), data_dir=stand_in, quick=True, limit=20)
    assert files["md"].name == f"{NAME}.quick.md"
    text = files["md"].read_text()
    assert "not results" in text and "first 20 test images" in text and "2 of 2 networks" in text
    assert "fashion_mnist test" in text
    assert text.count("keras_curv train --dataset fashion_mnist") == 2
    with open(files["csv"], newline="") as file:
        lines = list(csv.DictReader(file))
    ours = {(line["training"], line["column"]): float(line["ours"]) for line in lines}
    assert len(ours) == 6
    for training in ("certified", "coap"):
        clean = ours[training, "clean"]
        assert clean >= ours[training, "certified"] >= ours[training, "certified_all"] >= 0.0
    paper = [line["paper"] for line in lines if line["training"] == "coap"]
    assert paper == ["86.0", "74.0", ""]
    assert files["png"].stat().st_size > 5000

    monkeypatch.setattr(training_run, "train", None)
    (tmp_path / "models").rename(tmp_path / "elsewhere")
    again = run.reproduce(NAME, str(tmp_path), data_dir=stand_in, quick=True, limit=20)
    assert again["md"].read_text() == text
    shutil.rmtree(tmp_path / "models")
    (tmp_path / "elsewhere").rename(tmp_path / "models")
    lost = next((tmp_path / "measurements").glob("*.json"))
    known = json.loads(lost.read_text())
    least = [key for key in known if key.startswith("certified, all rivals: ")]
    lost.write_text(json.dumps({key: known[key] for key in known if key not in least}))
    again = run.reproduce(NAME, str(tmp_path), data_dir=stand_in, quick=True, limit=20)
    assert json.loads(lost.read_text()) == known
    assert again["md"].read_text() == text and len(least) == 1

    lost.write_text("")
    with pytest.raises(InputError, match=f"{lost.name} is broken: .*; remove it"):
        run.reproduce(NAME, str(tmp_path), data_dir=stand_in, quick=True, limit=20)
    lost.unlink()
    for recipe in (tmp_path / "models").glob("*/recipe.json"):
        recipe.write_text(recipe.read_text().replace('"epochs": 1', '"epochs": 2'))
    with pytest.raises(InputError, match=r"another recipe; they differ in epochs \(2, now 1\)"):
        run.reproduce(NAME, str(tmp_path), data_dir=stand_in, quick=True, limit=20)


def test_what_is_kept_is_told_apart(stand_in):
    """By all that decides a network, and by all that decides a figure of it."""
    table, row = tables.get(NAME), tables.rows(NAME)[0]
    recipe, examples = recipes.recipe(table, row), data.load(table.dataset, data_dir=stand_in)
    other = recipes.recipe(table, row, seed=1)
    copy = dataclasses.replace(examples, fingerprint="another copy of the images")
    net = run.Net(pathlib.Path("results"), table, row, recipe, examples)
    nets = [
        run.Net(pathlib.Path("results"), *rest)
        for rest in (
            (table, row, other, examples),
            (table, row, recipe, copy),
            (table, row, recipe, examples.limited(7)),
            (table._replace(radius=0.25), row, recipe, examples),
        )
    ]
    assert len({net.measured, *(other.measured for other in nets)}) == 5
    assert len({net.model, *(other.model for other in nets)}) == 3
    assert [other.model == net.model for other in nets] == [False, False, True, True]


def test_files_say_what_they_are_of(stand_in):
    examples = data.load("fashion_mnist", data_dir=stand_in)
    assert write.Marks("local", examples).stem == "local"
    assert write.Marks("local", examples, quick=True, limited=True).stem == "local.quick"
    marks = write.Marks("local", examples.limited(7), limited=True, seed=3)
    assert marks.stem == "local.first_7.seed_3"
    assert marks.warnings == ["Of the first 7 test images only."]


def test_no_correct_image_gives_no_mean(stand_in, monkeypatch):
    examples = data.load("digits").limited(3)
    wrong = examples.arrays()[1] + 1
    examples = data.Examples.from_arrays("wrong", examples.arrays()[0], wrong % 10)
    row = tables.Row(2, "softplus", "certified", None, {})
    subject = Subject(str(ROOT / "saved_models" / "digits"), row, examples, 0.5)
    assert COLUMNS["clean"].measure(subject) == 0.0
    assert all(np.isnan(COLUMNS[name].measure(subject)) for name in ("crc", "crown_seconds"))


def test_processes_share_the_work(stand_in, short, tmp_path, monkeypatch):
    """Who does not get the lock leaves the network alone, and says that it is not done."""
    trained = []
    monkeypatch.setattr(run.Net, "train", lambda net, *rest: trained.append(net.recipe.loss))
    monkeypatch.setattr(run.Net, "measure", lambda net: None)
    first = recipes.recipe(tables.get(NAME), short[0], quick=True)
    examples = data.load("fashion_mnist", data_dir=stand_in)
    (tmp_path / "models").mkdir()
    net, said = run.Net(tmp_path, tables.get(NAME), short[0], first, examples), []
    with run.lock(net.model.with_suffix(".lock")) as ours:
        assert ours
        options = {"data_dir": stand_in, "quick": True, "say": said.append}
        files = run.reproduce(NAME, str(tmp_path), **options)
    assert trained == [short[1].training]
    assert said[-1].startswith(f"{NAME}: 1 of 2 are in work elsewhere")
    text = files["md"].read_text()
    assert "0 of 2 networks" in text and "Not run: 2 × [32], " in text


@pytest.mark.parametrize("options", [{"layers": [3, 4]}, {"train": False}])
def test_what_is_not_to_be_trained(stand_in, short, tmp_path, monkeypatch, options):
    monkeypatch.setattr(run.Net, "train", lambda *args: pytest.fail("nothing was to be trained"))
    run.reproduce(NAME, str(tmp_path), data_dir=stand_in, quick=True, **options)


def test_one_that_fails_does_not_hold_up_the_others(stand_in, short, tmp_path, monkeypatch):
    measured = []

    def train(net, *rest):
        if net.recipe.loss == short[0].training:
            raise InputError("its weights are not finite")

    monkeypatch.setattr(run.Net, "train", train)
    monkeypatch.setattr(run.Net, "measure", lambda net: measured.append(net.recipe.loss))
    with pytest.raises(InputError, match="its weights are not finite"):
        run.reproduce(NAME, str(tmp_path), data_dir=stand_in, quick=True)
    assert measured == [short[1].training]
    assert "0 of 2 networks" in (tmp_path / f"{NAME}.quick.md").read_text()


def test_an_interrupted_training_goes_on(stand_in, short, tmp_path, monkeypatch):
    resumed = []

    def train(recipe, output, *, resume, **options):
        resumed.append(resume)
        pathlib.Path(output).mkdir(exist_ok=True)
        (pathlib.Path(output) / "recipe.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(training_run, "train", train)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run.reproduce(NAME, str(tmp_path), data_dir=stand_in, quick=True)
    assert resumed == [False, True]


@pytest.mark.slow
def test_measures_of_a_known_network(monkeypatch):
    """The shipped digits model: each column as it can be found by another way."""
    monkeypatch.setattr(measurements, "ATTACKED", 50)
    monkeypatch.setattr(measurements, "CORRECT", 20)
    examples = data.load("digits").limited(60)
    x, y = examples.arrays()
    y[:3] = (y[:3] + 1) % 10  # so that some are wrong
    examples = data.Examples.from_arrays("digits, three wrong", x, y)
    row = tables.Row(2, "softplus", "certified", None, {})
    args = str(ROOT / "saved_models" / "digits"), row, examples, 0.5
    subject = Subject(*args)
    figure = {name: COLUMNS[name].measure(subject) for name in COLUMNS}
    right = subject.logits.argmax(axis=1) == y
    assert figure["clean"] == 100.0 * right.mean() <= 95.0
    radius = subject.certifier("crc").certify_all(x, y).radius
    assert figure["certified_all"] == 100.0 * np.mean(radius > 0.5)
    first = 100.0 * np.mean(radius[:50] > 0.5), 100.0 * right[:50].mean()
    for attack in ("empirical", "empirical_ddn"):
        assert first[0] <= figure[attack] <= first[1] and figure[attack] % 2.0 == 0.0
    assert COLUMNS["empirical"].measure(Subject(*args)) == figure["empirical"]  # by itself
    closest = subject.certifier("crc").certify_all(x, y, rivals="runner_up")
    assert figure["certified"] == 100.0 * np.mean(closest.radius > 0.5) >= figure["certified_all"]
    assert figure["crc"] == pytest.approx(closest.radius[np.flatnonzero(right)[:20]].mean())
    assert figure["crc"] <= figure["crc_random"] <= figure["crc_least"]
    assert figure["crown"] <= figure["crown_random"] <= figure["crown_least"]
    assert figure["crc_local"] >= 0.99 * figure["crc"]
    below, proved, above = (figure[f"curvature_{which}"] for which in ("below", "proved", "above"))
    assert below <= proved <= above
    rates = success_rates(
        subject.certifier("crc").method, x[:50].reshape(50, -1), y[:50], radius=0.5
    )
    assert figure["certificate_success"] == 100.0 * rates[0]
    assert figure["attack_success"] == 100.0 * rates[1] != figure["certificate_success"]
    assert 1e-6 < figure["crc_seconds"] < 10.0
    # Decided by linear bounds at the radius, or by the largest radius that they prove.
    coap = Subject(subject.model, row._replace(training="coap"), examples, 0.25)
    crown = coap.certifier("crown").certify_all(x, y).radius
    assert abs(COLUMNS["certified_all"].measure(coap) - 100.0 * np.mean(crown > 0.25)) <= 2.0


@pytest.mark.slow
def test_measures_of_a_smoothed_network(monkeypatch):
    monkeypatch.setattr(measurements, "SMOOTHED", 8)
    monkeypatch.setattr(measurements, "SAMPLES", 2000)
    examples = data.load("digits").limited(20)
    row = tables.Row(2, "softplus", "noise", 0.25, {})
    subject = Subject(str(ROOT / "saved_models" / "digits"), row, examples, 0.4)
    smoothed = SmoothedClassifier(subject.model, 0.25)
    x, y = examples.arrays()
    for rivals, column in (("all", "certified_all"), ("runner_up", "certified")):
        options = {"rivals": rivals, "samples": 2000, "noise": "shared"}
        radius = smoothed.certify(x[:8], y[:8], **options).radius
        assert 0.0 < COLUMNS[column].measure(subject) == 100.0 * np.mean(radius > 0.4) < 100.0


def test_commands_lead_back_to_the_recipe():
    row = tables.Row(3, "sigmoid", "crt", 0.01, {})
    command = recipes.command(recipes.recipe(tables.get("adversarial"), row))
    assert command.startswith("keras_curv train --dataset mnist --layers 3 --width 1024 ")
    for part in ("--loss crt", "--radius 0.5", "--gamma 0.01", "--initial_scale 4", "--output DIR"):
        assert part in command


def test_figures_are_written_as_they_are():
    row = tables.Row(2, "relu", "plain", None, {"crc": 0.59166, "crown": 0.5011})
    table = tables.get("targets")
    result = Result(row, recipes.recipe(table, row), {"crc": 0.5, "crown": np.inf}, None, False)
    text = write.markdown(table, [result], write.Marks("targets", data.load("digits")))
    assert "| ∞ (0.5011) | 0.5 (0.5917) | – |" in text


BAD = [
    ([], "--table is required"),
    (["--table", "nothing"], "table must be one of success, mnist_1.58"),
    (["--table", "local", "--layers", "two"], "--layers must be numbers. Received: two"),
    (["--table", "local,success", "--layers", "7"], "--layers must be of 2,3,4. Received: '7'"),
    (["--table", "local", "--layers", ""], "--layers must be of 2. Received: ''"),
    (["--table", "local", "--data_dir", "/nowhere"], "/nowhere does not exist"),
    (["--table", "local", "--limit", "0"], "--limit"),
    (["--table", "local", "--output", ""], "--output must name a folder"),
]


def test_bad_input_is_one_line(capfd, tmp_path):
    script = scripts.load("reproduce")
    for arguments, message in BAD:
        output = "--output", str(tmp_path / "out")
        status, stdout, line = scripts.call(script, capfd, *output, *arguments)
        assert (status, stdout) == (2, "")
        assert message in line and line.startswith("reproduce: ") and line.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_list(capfd):
    status, stdout, _ = scripts.call(scripts.load("reproduce"), capfd, "--list")
    assert status == 0 and all(name in stdout for name in tables.TABLES)


def test_an_output_that_cannot_be(tmp_path, stand_in):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be used for output"):
        run.reproduce(NAME, str(tmp_path / "file"), data_dir=stand_in, quick=True)
