"""The verdict of a run as a JUnit file, which systems of continuous integration show."""

from __future__ import annotations

from xml.etree import ElementTree

from keras_curv.errors import visible
from keras_curv.reports.wording import describe, model_name


def junit(summary: dict) -> str:
    """Returns a JUnit file of the verdict: one test case for each requirement.

    The same run gives the same text: there is no time in it.

    Args:
        summary: of a run with a verdict.

    Example:
        >>> check = {"name": "lost_certificates", "requirement": "max_lost=0.01",
        ...          "required": 0.01, "found": 0.02, "passed": False}
        >>> known = {"saved_model": "models/8", "dataset": "digits", "cut": None}
        >>> text = junit(known | {"verdict": {"passed": False, "checks": [check]}})
        >>> suite = ElementTree.fromstring(text.encode()).find("testsuite")
        >>> suite.attrib["failures"], suite.find("testcase").attrib["name"]
        ('1', 'max_lost=0.01')
    """
    checks = summary["verdict"]["checks"]
    counts = {"tests": str(len(checks)), "failures": str(sum(not c["passed"] for c in checks))}
    root = ElementTree.Element("testsuites", {"name": "keras_curv"} | counts)
    name = visible(f"{model_name(summary)} on {summary['dataset']}")
    suite = ElementTree.SubElement(root, "testsuite", {"name": name} | counts | {"errors": "0"})
    for check in checks:
        known = {"classname": "keras_curv.certify", "name": visible(check["requirement"])}
        case = ElementTree.SubElement(suite, "testcase", known)
        if not check["passed"]:
            message = visible(describe(check))
            failure = {"message": message, "type": check["name"]}
            ElementTree.SubElement(case, "failure", failure).text = message
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"


def github_annotations(verdict: dict) -> list[str]:
    """Returns a line for each requirement that is not met, as GitHub's runners show them.

    Example:
        >>> check = {"name": "lost_certificates", "requirement": "max_lost=0.01",
        ...          "required": 0.01, "found": 0.02, "passed": False}
        >>> print(*github_annotations({"passed": False, "checks": [check]}))
        ::error title=keras_curv max_lost=0.01::FAILED: lost 2.00 %25 of the certificates, \
allowed 1 %25
    """
    return [
        f"::error title={_escaped('keras_curv ' + check['requirement'], ':,')}"
        f"::{_escaped(describe(check))}"
        for check in verdict["checks"]
        if not check["passed"]
    ]


def _escaped(text: str, also: str = "") -> str:
    """Returns text with what ends a line, or a value, as a percentage of its code."""
    text = visible(text).replace("%", "%25")
    for character in also:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
