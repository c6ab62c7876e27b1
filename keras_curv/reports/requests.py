"""Tables and lines that only a run over logged requests has."""

from __future__ import annotations

from rich.console import Console

from keras_curv.reports.tables import Table, print_line, print_table
from keras_curv.reports.wording import percent


def request_tables(summary: dict) -> list[Table]:
    """Returns the certified fraction by version and over time.

    Args:
        summary: of `certify_requests`.
    """
    at = [f"> {radius}" for radius in summary["certified_accuracy"]]

    def row(name: str, entry: dict) -> list[str]:
        return [name, f"{entry['examples']:,}", *map(percent, entry["certified"].values())]

    versions = [row(name or "unknown", entry) for name, entry in summary["versions"].items()]
    drift = summary["drift"]
    by_time = drift["by"] == "time"
    over = "over time" if by_time else "over the order of files and records, as not all have a time"
    parts = [row(str(part["from"]), part) for part in drift["parts"]]
    tables = [
        Table("Certified, by version", ["version", "examples", *at], versions),
        Table(f"Certified, {over}", ["from" if by_time else "from row", "examples", *at], parts),
    ]
    return tables


def request_reasons(summary: dict) -> list[str]:
    """Returns a line for each reason why requests were refused or skipped."""
    lines = []
    for name, reason in summary["reasons"].items():
        verb = "skipped" if reason["skipped"] else "refused"
        detail = f": {reason['detail']}" if reason["detail"] else ""
        lines.append(
            f"{verb} {reason['count']:,} {name}: {reason['text']}; first {reason['first']}{detail}"
        )
    return lines


def all_refused(summary: dict) -> str:
    """Returns a line that says so where no request could be certified; else an empty one."""
    if summary.get("refused") != summary["examples"]:
        return ""
    left = f"{summary['refused']:,} examples refused, {summary['skipped']:,} records skipped"
    return f"no request could be certified: {left}"


def print_reasons(summary: dict, console: Console) -> None:
    """Prints why requests were refused or skipped."""
    for line in request_reasons(summary):
        print_line(line, console)


def print_requests(summary: dict, console: Console) -> None:
    """Prints what there is of logged requests alone."""
    for table in request_tables(summary):
        print_table(table, console)
