"""What the page on serving shows works."""

import json
import pathlib
import re

import logged

from keras_curv.serving.certify_requests import certify_requests

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "serving.md"


def test_recorded_bodies_can_be_certified(tmp_path, monkeypatch):
    """Also those that a client has spread over several lines."""
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"^```python\n(def record.*?)^```", PAGE.read_text(), re.M | re.S)
    names = {}
    exec(code, names)
    for body in ({"instances": [[[0, 1, 2], [3, 4, 5]]]}, {"inputs": {"x": [[[1] * 3] * 2] * 2}}):
        names["record"](json.dumps(body, indent=1).replace("\n", "\r\n").encode())
    model = logged.save(tmp_path / "model", 1)
    found = certify_requests(model, ["requests.jsonl"], method="lipschitz")
    assert (found["examples"], found["refused"]) == (3, 0)
