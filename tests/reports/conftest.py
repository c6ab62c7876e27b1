import pytest
from report_pages import DIGITS

from keras_curv import data
from keras_curv.runs.certify_examples import certify_examples


@pytest.fixture(scope="session")
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
