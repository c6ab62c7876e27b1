"""A short run of `benchmarks/fuzz_certificates.py`: no certificate is broken, none unproved."""

import sys

import pytest

pytest.importorskip("flint")
sys.path.insert(0, "benchmarks")

from fuzz_certificates import Case


@pytest.mark.parametrize("number", [8, 20, 75, 106, 164])
def test_cases_hold(number):
    """Squares by intervals and by auto, and kinks by coupled bounds, by auto and by lines."""
    assert Case(number).run() in ("held", "refused")
