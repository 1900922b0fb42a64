"""How every benchmark speaks: rows of figures, each beside a peer's or a limit's of the same run.

A row says what was measured, the figure, its unit, what it is compared with, the ratio, and
what was wanted; ``--json`` prints the same as one object a line.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
from collections.abc import Sequence


@dataclasses.dataclass
class Row:
    """One figure of one run.

    Args:
        name: what was measured, with its sizes.
        value: the figure.
        unit: its unit, such as "ms".
        ratio: the figure in units of ``against``, or None where there is nothing beside it.
        against: what the ratio compares with, in words.
        wanted: the bound in words, such as "<= 1.15".
        note: what a reader must know.
    """

    name: str
    value: float
    unit: str
    ratio: float | None = None
    against: str = ""
    wanted: str = ""
    note: str = ""

    @property
    def verdict(self) -> str:
        """ "yes" or "no" where a bound on the ratio was wanted, else ""."""
        if self.ratio is None or not self.wanted:
            return ""
        sign, bound = self.wanted.split()[:2]
        met = self.ratio <= float(bound) if sign == "<=" else self.ratio >= float(bound)
        return "yes" if met else "no"


class Report:
    """Collects rows, prints each as it comes."""

    def __init__(self, title: str, *, as_json: bool) -> None:
        self.title = title
        self.as_json = as_json
        self.rows: list[Row] = []
        if not as_json:
            print(f"{title}  ({os.cpu_count()} cores, {platform.machine()})", flush=True)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        if self.as_json:
            shown = {"benchmark": self.title, **dataclasses.asdict(row), "met": row.verdict}
            print(json.dumps(shown), flush=True)
            return
        text = f"  {row.name:<52} {row.value:>10.4g} {row.unit:<8}"
        if row.ratio is not None:
            text += f" {row.ratio:>8.3g} x {row.against}"
        if row.wanted:
            text += f"  (wanted {row.wanted}: {row.verdict})"
        print(text + (f"  {row.note}" if row.note else ""), flush=True)

    def say(self, text: str) -> None:
        """A line for the reader, left out of --json."""
        if not self.as_json:
            print(f"  {text}", flush=True)


def parser(description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    made.add_argument("--json", action="store_true", help="one JSON object a line")
    made.add_argument("--quick", action="store_true", help="fewer repetitions and sizes")
    return made


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of 100 do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
