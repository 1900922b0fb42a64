"""Time of one sync against the link, against memcpys of the model, and against torchft.

Links: 2(M-1)/M * bytes / rate, the least that M members must move each way. Loopback: memcpys
of the model, measured by the same processes at the same time. torchft: LocalSGD and DiLoCo on the
same model in processes of their own, beside a lighthouse.

A sync happens in an optimizer step. It is timed, everywhere alike, as the scripts see it: from when
the last node came to that step to when the last one went on, the median of all syncs of a run but
its first two. That holds the optimizer's own work too, which is the same with and without solo or
torchft: links and memcpys are compared with it in, which is against solo; with torchft what is
compared is the sync alone, less the median of an ordinary step of the same run (the rows with the
step stand beside).
"""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass
class Syncs:
    """Medians, in seconds, of one run.

    Args:
        sync: a step with a sync.
        ordinary: a step without.
        memcpy: one copy of the model, by all nodes at the same time.
        size: the model's bytes.
        count: how many syncs the first is the median of.
    """

    sync: float
    ordinary: float
    memcpy: float = float("nan")
    size: float = float("nan")
    count: int = 0

    @property
    def alone(self) -> float:
        return self.sync - self.ordinary


def all_of(each: Sequence[Rows], key: str) -> list[float]:
    return [row[key] for rows in each for row in rows if key in row]


def solo_syncs(
    directory: pathlib.Path,
    mib: float,
    count: int,
    syncs: int,
    options: list[str],
    lab: netlab.Lab | None = None,
) -> Syncs:
    shared = ["--sync_interval", str(EVERY), "--min_nodes", str(count), *options]
    loop = ["--mib", str(mib), "--syncs", str(syncs), "--every", str(EVERY)]
    with Job(directory, options=shared, lab=lab) as job:
        for rank in range(count):
            job.start(rank, LOOP, [*loop, "--copies"])
        codes = job.wait(600)
        if any(codes):
            raise RuntimeError(f"exit codes {codes}:\n{job.nodes[0].text()[-2000:]}")
        each = [rows_of(node.output) for node in job.nodes]
    merges = [[row for row in rows if row.get("step", 1) % EVERY == 0] for rows in each]
    seconds = sync_seconds(merges)
    return Syncs(
        sync=median(seconds),
        ordinary=median(all_of(each, "ordinary")),
        memcpy=median(all_of(each, "memcpy")),
        size=each[0][0]["bytes"],
        count=len(seconds),
    )


def torchft_syncs(rule: str, mib: float, count: int, syncs: int) -> Syncs | None:
    """The same of torchft, or None where it cannot be installed."""
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
    together = [[row for row in rows if row.get("participants") == count] for rows in each]
    seconds = sync_seconds(together)
    ordinary = median(all_of(each, "ordinary"))
    return Syncs(sync=median(seconds), ordinary=ordinary, count=len(seconds))


# What must pass through memory in a merge of two nodes on one host, in copies of the model (which
# read it and write it): both read theirs and the anchor, the anchor's half once more with the
# mean, write the next anchor, read it and write it to the model; nesterov reads the momentum,
# writes it, and reads it for the digest.
COPIES = {"avg": 5.5 / 2, "nesterov": 8.5 / 2}


def loopback_row(name: str, rule: str, mib: float, solo: Syncs) -> Row:
    """One size and rule on this host, in copies of the model."""
    large = mib > 4
    wanted = ("<= 12" if rule == "avg" else "<= 16") if large else ""
    least = COPIES[rule] * solo.memcpy
    moved = 2 * COPIES[rule] * solo.size / 2**20
    note = f"{solo.count} syncs"
    note += f"; memory: {moved:.0f} MiB a node, {least * 1e3:.1f} ms of copying" if large else ""
    ratio = solo.sync / solo.memcpy
    return Row(f"{name} {rule}", solo.sync * 1e3, "ms", ratio, "memcpy", wanted, note)


def loopback(report: Report, directory: pathlib.Path, quick: bool) -> None:
    for mib in (1.1, 61.7):
        syncs = 8 if quick else 20
        for rule, peer in (("avg", "localsgd"), ("nesterov", "diloco")):
            ours = solo_syncs(directory / f"{rule}{mib}", mib, 2, syncs, ["--outer", rule])
            report.add(loopback_row(f"loopback M=2 {mib} MiB fp32", rule, mib, ours))
            theirs = torchft_syncs(peer, mib, 2, syncs)
            if theirs is None:
                report.say("torchft cannot be installed here: its rows are left out")
                continue
            name, note = f"torchft {peer} M=2 {mib} MiB", f"{theirs.count} syncs"
            for what, they, we, wanted in (
                ("", theirs.alone, ours.alone, ">= 4"),
                (" with the step", theirs.sync, ours.sync, ""),
            ):
                against = f"solo ({we * 1e3:.1f} ms)"
                report.add(Row(name + what, they * 1e3, "ms", they / we, against, wanted, note))


LINKS = {1000: ("fp32", 1.0), 200: ("fp32", 1.0), 100: ("int8", 8.125 / 32)}  # Mbit/s


def links(
    report: Report, directory: pathlib.Path, counts: Sequence[int], rates: Sequence[int]
) -> None:
    for count in counts:
        for rate in rates:
            codec, share = LINKS[rate]
            with netlab.Lab(count, rate_mbit=rate) as lab:
                solo = solo_syncs(
                    directory / f"link{count}-{rate}", 61.7, count, 6, ["--codec", codec], lab
                )
            least = 2 * (count - 1) / count * solo.size * share / (rate * 1e6 / 8)
            name = f"{rate} Mbit/s M={count} 61.7 MiB {codec}"
            against = "2(M-1)/M bytes/rate"
            report.add(Row(name, solo.sync * 1e3, "ms", solo.sync / least, against, "<= 1.15"))


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--part", choices=["loopback", "links"], action="append")
    options.add_argument("--nodes", type=int, choices=[2, 4], action="append", help="of the links")
    options.add_argument("--rate", type=int, choices=list(LINKS), action="append", help="Mbit/s")
    args = options.parse_args()
    parts = args.part or ["loopback", "links"]
    report = Report("bench_sync", as_json=args.json)
    with tempfile.TemporaryDirectory() as name:
        if "loopback" in parts:
            loopback(report, pathlib.Path(name), args.quick)
        if "links" in parts and (reason := netlab.why_not()):
            report.say(f"the links are left out: {reason}")
        elif "links" in parts:
            counts, rates = ([2], list(LINKS)[:1]) if args.quick else ([2, 4], list(LINKS))
            links(report, pathlib.Path(name), args.nodes or counts, args.rate or rates)
    return 0


if __name__ == "__main__":
    sys.exit(main())
