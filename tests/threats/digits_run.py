"""A run on the first digits, with all that it writes."""

import pathlib

from keras_curv import certify_examples, data

DIGITS = pathlib.Path(__file__).resolve().parents[2] / "saved_models" / "digits"


def certified_digits(folder, count, **options):
    """Paths of rows, summary and report; the summary; and the examples."""
    x, y = data.load_all("digits")
    files = {name: str(folder / name) for name in ("rows.csv", "summary.json", "report.html")}
    summary = certify_examples(
        DIGITS, (x[:count], y[:count]), method="crc", radii=[0.5],
        output=files["rows.csv"], summary=files["summary.json"], report=files["report.html"],
        **options,
    )  # fmt: skip
    return files, summary, (x[:count], y[:count])
