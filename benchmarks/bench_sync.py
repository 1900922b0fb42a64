"""Time of one sync against the link, against memcpys of the model, and against torchft.

Links: 2(M-1)/M * bytes / rate, the least that M members must move each way. Loopback: memcpys
of the model, measured by the same processes. torchft: LocalSGD and DiLoCo on the same model in
processes of their own, beside a lighthouse. What is timed everywhere is the optimizer step in
which the sync happens, as the training script sees it.
"""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from benchmarks import netlab
from benchmarks.nodes import Job, json_lines
from benchmarks.peers import torchft_env, torchft_python
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


Rows = list[dict[str, float]]
EVERY = 20


def rows_of(output: pathlib.Path) -> Rows:
    return [row for row in json_lines(output) if isinstance(row, dict)]


def sync_seconds(each: Sequence[Rows], skip: int = 2) -> list[float]:
    """Seconds of every sync that all nodes saw, but the first ``skip``.

    A sync lasts from when the last node came to it to when the last one went on: what the others
    stood waiting for that node is its doing (here: the machine's other load), not the sync's.
    """
    steps: dict[float, Rows] = {}
    for rows in each:
        for row in rows:
            if "seconds" in row:
                steps.setdefault(row["step"], []).append(row)
    whole = [rows for _, rows in sorted(steps.items()) if len(rows) == len(each)]
    return [
        max(row["at"] for row in rows) - max(row["at"] - row["seconds"] for row in rows)
        for rows in whole[skip:]
    ]


def solo_syncs(
    directory: pathlib.Path,
    mib: float,
    count: int,
    syncs: int,
    options: list[str],
    lab: netlab.Lab | None = None,
) -> tuple[float, float, float]:
    """Median seconds of a sync and of a memcpy of the model, and the model's bytes."""
    shared = ["--sync_interval", str(EVERY), "--min_nodes", str(count), *options]
    loop = ["--mib", str(mib), "--syncs", str(syncs), "--every", str(EVERY)]
    with Job(directory, options=shared, lab=lab) as job:
        for rank in range(count):
            job.start(rank, LOOP, [*loop, "--copies"] if rank == 0 else loop)
        codes = job.wait(600)
        if any(codes):
            raise RuntimeError(f"exit codes {codes}:\n{job.nodes[0].text()[-2000:]}")
        each = [rows_of(node.output) for node in job.nodes]
    merges = [[row for row in rows if row.get("step", 1) % EVERY == 0] for rows in each]
    memcpy = median([row["memcpy"] for row in each[0] if "memcpy" in row])
    return median(sync_seconds(merges)), memcpy, each[0][0]["bytes"]


def torchft_syncs(rule: str, mib: float, count: int, syncs: int) -> float | None:
    """Median seconds of a sync of torchft, or None where it cannot be installed."""
    python = torchft_python()
    if python is None:
        return None
    quiet = {"stderr": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    command = [python, str(TORCHFT_LOOP), "--rule", rule, "--mib", str(mib)]
    command += ["--syncs", str(syncs), "--every", str(EVERY)]
    server = subprocess.Popen([python, "-c", LIGHTHOUSE, str(count)], **quiet)  # type: ignore[call-overload]
    replicas: list[subprocess.Popen[str]] = []
    try:
        address = server.stdout.readline().strip()
        for index in range(count):
            env = torchft_env(address, index)
            replicas.append(subprocess.Popen(command, env=env, **quiet))  # type: ignore[call-overload]
        shown = [replica.communicate(timeout=300)[0] for replica in replicas]
    finally:
        for process in (*replicas, server):
            process.kill()
            process.wait()
    each = [[json.loads(line) for line in re.findall(r"^{.*}$", s, re.M)] for s in shown]
    together = [[row for row in rows if row["participants"] == count] for rows in each]
    return median(sync_seconds(together))


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
    cases = [(1000, "fp32", 1.0), (200, "fp32", 1.0), (100, "int8", 8.125 / 32)]
    for count in (2,) if quick else (2, 4):
        for rate, codec, share in cases[:1] if quick else cases:
            with netlab.Lab(count, rate_mbit=rate) as lab:
                solo, _, size = solo_syncs(
                    directory / f"link{count}-{rate}", 61.7, count, 6, ["--codec", codec], lab
                )
            least = 2 * (count - 1) / count * size * share / (rate * 1e6 / 8)
            name = f"{rate} Mbit/s M={count} 61.7 MiB {codec}"
            report.add(Row(name, solo * 1e3, "ms", solo / least, "2(M-1)/M bytes/rate", "<= 1.15"))


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--part", choices=["loopback", "links"], action="append")
    args = options.parse_args()
    parts = args.part or ["loopback", "links"]
    report = Report("bench_sync", as_json=args.json)
    with tempfile.TemporaryDirectory() as name:
        if "loopback" in parts:
            loopback(report, pathlib.Path(name), args.quick)
        if "links" in parts and (reason := netlab.why_not()):
            report.say(f"the links are left out: {reason}")
        elif "links" in parts:
            links(report, pathlib.Path(name), args.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
