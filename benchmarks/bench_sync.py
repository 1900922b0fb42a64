"""Time of one sync against the link, against memcpys of the model, and against torchft.

Links: 2(M-1)/M * bytes / rate, the least that M members must move each way. Loopback: memcpys
of the model, measured by the same processes. torchft: LocalSGD and DiLoCo on the same model in
processes of their own, beside a lighthouse. What is timed everywhere is the optimizer step in
which the sync happens, as the training script sees it.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from benchmarks import netlab
from benchmarks.nodes import Job, json_lines
from benchmarks.peers import torchft_python
from benchmarks.report import Report, Row, median, parser

HERE = pathlib.Path(__file__).parent
LOOP = HERE / "scripts" / "sync_loop.py"
TORCHFT_LOOP = HERE / "peers" / "torchft_sync.py"
LIGHTHOUSE = """
import sys, time
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="127.0.0.1:0", min_replicas=int(sys.argv[1]), join_timeout_ms=200)
print(server.address(), flush=True)
time.sleep(3600)
"""


def solo_syncs(
    directory: pathlib.Path,
    mib: float,
    count: int,
    syncs: int,
    options: list[str],
    lab: netlab.Lab | None = None,
) -> tuple[float, float, float]:
    """Median sync seconds, memcpy seconds and bytes of the model, as the slowest node saw it."""
    shared = ["--sync_interval", "20", "--min_nodes", str(count), *options]
    with Job(directory, options=shared, lab=lab) as job:
        for rank in range(count):
            job.start(rank, LOOP, ["--mib", str(mib), "--syncs", str(syncs)])
        codes = job.wait(600)
        if any(codes):
            raise RuntimeError(f"exit codes {codes}:\n{job.nodes[0].text()[-2000:]}")
        each = [rows_of(node.output) for node in job.nodes]
    times = [max(pair) for pair in zip(*(sync_times(rows) for rows in each), strict=False)]
    memcpy = median([row["memcpy"] for rows in each for row in rows if "memcpy" in row])
    size = next(row["bytes"] for row in each[0] if "bytes" in row)
    return median(times[2:]), memcpy, size


def rows_of(output: pathlib.Path) -> list[dict[str, float]]:
    return [row for row in json_lines(output) if isinstance(row, dict)]


def sync_times(rows: list[dict[str, float]]) -> list[float]:
    return [row["seconds"] for row in rows if row.get("step", 1) % 20 == 0]


def torchft_syncs(rule: str, mib: float, count: int, syncs: int) -> float | None:
    """Median sync seconds of torchft, or None where it cannot be installed."""
    python = torchft_python()
    if python is None:
        return None
    quiet = {"stderr": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    server = subprocess.Popen([python, "-c", LIGHTHOUSE, str(count)], **quiet)  # type: ignore[call-overload]
    try:
        address = server.stdout.readline().strip()
        replicas = [
            subprocess.Popen(
                [
                    python,
                    str(TORCHFT_LOOP),
                    "--rule",
                    rule,
                    "--mib",
                    str(mib),
                    "--syncs",
                    str(syncs),
                ],
                env={**os.environ, "LIGHTHOUSE": address, "REPLICA": str(i)},
                **quiet,
            )  # type: ignore[call-overload]
            for i in range(count)
        ]
        shown = [replica.communicate(timeout=300)[0] for replica in replicas]
    finally:
        server.kill()
        server.wait()
    each = [[json.loads(line)["seconds"] for line in re.findall(r"^{.*}$", s, re.M)] for s in shown]
    return median([max(pair) for pair in zip(*each, strict=False)][2:])


def loopback(report: Report, directory: pathlib.Path, quick: bool) -> None:
    for mib in (1.1, 61.7):
        syncs = 8 if quick else 20
        solo, memcpy, _ = solo_syncs(directory / f"avg{mib}", mib, 2, syncs, ["--outer", "avg"])
        wanted = "<= 12" if mib > 4 else ""
        name = f"loopback M=2 {mib} MiB fp32"
        report.add(Row(f"{name} avg", solo * 1e3, "ms", solo / memcpy, "memcpy", wanted))
        outer, memcpy, _ = solo_syncs(
            directory / f"nesterov{mib}", mib, 2, syncs, ["--outer", "nesterov"]
        )
        wanted = "<= 16" if mib > 4 else ""
        report.add(Row(f"{name} nesterov", outer * 1e3, "ms", outer / memcpy, "memcpy", wanted))
        for rule, ours in (("localsgd", solo), ("diloco", outer)):
            theirs = torchft_syncs(rule, mib, 2, syncs)
            if theirs is None:
                report.say("torchft cannot be installed here: its rows are left out")
                continue
            row = Row(
                f"torchft {rule} M=2 {mib} MiB", theirs * 1e3, "ms", theirs / ours, "solo", ">= 4"
            )
            report.add(row)


def links(report: Report, directory: pathlib.Path, quick: bool) -> None:
    for count in (2, 4):
        for rate, codec, share in ((1000, "fp32", 1.0), (100, "int8", 8.125 / 32)):
            if quick and (count == 4 or rate == 100):
                continue
            with netlab.Lab(count, rate_mbit=rate) as lab:
                solo, _, size = solo_syncs(
                    directory / f"link{count}{rate}", 64, count, 6, ["--codec", codec], lab
                )
            least = 2 * (count - 1) / count * size * share / (rate * 1e6 / 8)
            name = f"{rate} Mbit/s M={count} 64 MiB {codec}"
            report.add(Row(name, solo * 1e3, "ms", solo / least, "2(M-1)/M bytes/rate", "<= 1.15"))


def main() -> int:
    args = parser(__doc__).parse_args()
    report = Report("bench_sync", as_json=args.json)
    with tempfile.TemporaryDirectory() as name:
        loopback(report, pathlib.Path(name), args.quick)
        if reason := netlab.why_not():
            report.say(f"the links are left out: {reason}")
        else:
            links(report, pathlib.Path(name), args.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
