"""Numbers may be fractions: of flags, and in threats as JSON."""

import json

import pytest
from scripts import call

from keras_curv.errors import InputError
from keras_curv.threats.threat import Threat
from keras_curv.threats.threat_file import load_threat, parse_threat


def test_radii_are_fractions(script, capfd):
    flags = "--limit", "2", "--method", "lipschitz"
    found = [call(script, capfd, *flags, "--radius", r) for r in ("2/255", repr(2 / 255))]
    assert found[0][0] == 0 and repr(2 / 255) in found[0][1]
    tables = [out[: out.index("2 examples")] for _, out, _ in found]  # without the seconds
    assert tables[0] == tables[1]


@pytest.mark.parametrize("given", ["2/0", "2/", "/2", "2/255/3", "a/b", "1.5, 2"])
def test_what_is_no_fraction_is_refused_in_a_line(given, script, capfd):
    code, out, err = call(script, capfd, "--limit", "1", "--radius", given)
    assert (code, out) == (2, "") and err.count("\n") == 1 and "radius" in err


def test_threats_have_fractions(tmp_path):
    assert parse_threat(None, "1/255", "0,1/2") == parse_threat(None, str(1 / 255), "0,0.5")
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"scale": ["1/255", 2], "high": "3/2", "norm": "l1"}))
    assert load_threat(str(path)) == Threat(scale=[1 / 255, 2], high=1.5, norm="l1")
    for bad in ("1/0", "a", "2/x"):
        path.write_text(json.dumps({"scale": [bad, 2]}))
        with pytest.raises(InputError, match="a.json"):
            load_threat(str(path))
