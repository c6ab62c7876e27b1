"""Reports of small runs, parsed, and what every one of them must be."""

import html.parser
import pathlib

import keras

from keras_curv.data.examples import Examples
from keras_curv.reports.html import page
from keras_curv.reports.html.report_data import ReportData
from keras_curv.rows.row import Row
from keras_curv.rows.tally import Tally
from keras_curv.runs.certify_examples import certify_examples
from keras_curv.threats.properties.property import ARGMAX
from keras_curv.threats.threat import PLAIN, UNRESTRICTED

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


CLAIM = {"changes": UNRESTRICTED.text, "holds": ARGMAX.text, "units": None, "norm": PLAIN}


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


def row(index, radius, status="CERTIFIED", label=0):
    return Row(index, label, 0, 1, radius, status, 1, False, "all", "crc" if radius else "")


def rendered(rows, cases=(), **changed):
    report_data, tally = ReportData(), Tally((0.5,))
    report_data.add(rows)
    tally.add(rows)
    summary = {"saved_model": "m", "dataset": "d"} | tally.summary()
    summary |= {"rivals": "all", "guarantee": "real", "input_scale": 1.0, "input_shape": [2]}
    summary |= {"depth": 2, "classes": 2, "claim": CLAIM} | changed
    return require_self_contained(page.render(summary, {"version": "0"}, report_data, list(cases)))
