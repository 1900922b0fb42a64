"""One round without Python: C members on this host, in memcpys of the model (which both members
make at the same time, as they do a round's work); and the control path alone, with 32 members that
have nothing to merge.

A member's figure is from solo_submit to the merge's end. Of each round the slowest member counts
for the exchange; for the control latency the member that came last to the round does: from its
READY to its COMMIT nobody is waited for.
"""

from __future__ import annotations

import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.report import Report, Row, parser

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.e2e.jobs import Process, running  # noqa: E402

MODEL_BYTES = int(61.7 * 2**20)


def run_members(count: int, arguments: list[list[str]]) -> list[Process]:
    """Runs a job to its end; its members with what they printed."""
    with tempfile.TemporaryDirectory() as directory, running(pathlib.Path(directory)) as job:
        job.master("--min-nodes", str(count))
        members = [job.member(rank, "--quiet", *arguments[rank]) for rank in range(count)]
        codes = [member.end(300) for member in members]
        if any(codes):
            raise RuntimeError(job.text())
        return members


def by_version(members: list[Process]) -> list[list[dict[str, Any]]]:
    """The rows of each round in which all members took part."""
    rounds: dict[int, list[dict[str, Any]]] = {}
    for member in members:
        for row in member.rounds():
            rounds.setdefault(row["version"], []).append(row)
    return [rows for _, rows in sorted(rounds.items()) if len(rows) == len(members)]


def exchange(report: Report, name: str, options: list[str], rounds: int, wanted: str) -> None:
    """Seconds of one sync of the model between two members on this host."""
    common = ["--elements", str(MODEL_BYTES // 4), "--rounds", str(rounds), *options]
    members = run_members(2, [[*common, "--memcpys"]] * 2)
    copies = [row["us"] for member in members for row in member.rows if row["event"] == "memcpy"]
    memcpy = statistics.median(copies)
    syncs = [
        max(row["ended_us"] for row in rows) - max(row["began_us"] for row in rows)
        for rows in by_version(members)
    ][2:]
    took = statistics.median(syncs)
    report.add(
        Row(
            name=f"sync of 61.7 MiB, 2 members, {name}",
            value=took / 1000,
            unit="ms",
            ratio=took / memcpy,
            against=f"a memcpy of the model by both ({memcpy / 1000:.1f} ms)",
            wanted=wanted,
            note=f"{len(syncs)} syncs",
        )
    )


def control(report: Report, count: int, rounds: int) -> None:
    """READY to COMMIT of an empty model."""
    options = ["--elements", "0", "--rounds", str(rounds), "--step-ms", "20"]
    members = run_members(count, [options] * count)
    latencies = [
        min(row["ended_us"] - row["began_us"] for row in rows) for rows in by_version(members)
    ][2:]
    latencies.sort()
    median = statistics.median(latencies)
    p99 = latencies[min(len(latencies) - 1, int(len(latencies) * 0.99))]
    for what, value, wanted in (("median", median, ""), ("p99", p99, "<= 1")):
        report.add(
            Row(
                name=f"READY to COMMIT, {count} members, empty model, {what}",
                value=value / 1000,
                unit="ms",
                ratio=value / 10_000,
                against="10 ms",
                wanted=wanted,
            )
        )


def main() -> int:
    arguments = parser(__doc__).parse_args()
    subprocess.run(["make", "-s", "build/release/member"], cwd=ROOT, check=True)
    report = Report("round", as_json=arguments.json)
    rounds = 8 if arguments.quick else 20
    exchange(report, "averaging, shared memory", [], rounds, "<= 12")
    exchange(report, "nesterov, shared memory", ["--outer", "nesterov"], rounds, "<= 16")
    exchange(report, "averaging, TCP", ["--tcp"], rounds, "")
    exchange(report, "averaging, int8, shared memory", ["--codec", "int8"], rounds, "")
    control(report, 32, 30 if arguments.quick else 150)
    return 0


if __name__ == "__main__":
    sys.exit(main())
