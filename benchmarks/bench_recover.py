"""What a fault costs the survivors: their longest gap between two steps, and the steps redone.

Three nodes run a loop of sleeping steps with real merges. A member is killed between rounds and
inside one, leaves, or is stopped; torchft runs the cases that it can do, two replicas, beside it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.bench_sync import LIGHTHOUSE, LOOP, TORCHFT_LOOP, Rows, rows_of
from benchmarks.nodes import Job, Node
from benchmarks.peers import torchft_env, torchft_python
from benchmarks.report import Report, Row, median, parser

EVERY, STEP_MS, SYNCS = 100, 10, 16
WARM = 4  # rounds of three nodes before the fault
LEASE_SECONDS = 3


def rank_pid(node: Node) -> int:
    """The pid of the node's only rank: a child of torchrun that is not a helper of ours."""
    shown = subprocess.run(
        ["pgrep", "-P", str(node.process.pid), "-f", "sync_loop"], capture_output=True, text=True
    ).stdout.split()
    return int(shown[0])


def kill(node: Node, rank: int) -> None:
    os.kill(rank, signal.SIGKILL)
    node.kill()


def leave(node: Node, rank: int) -> None:
    del rank  # torchrun passes the signal on
    node.terminate()


def stop(node: Node, rank: int) -> None:
    del node
    os.kill(rank, signal.SIGSTOP)


def wait_for(job: Job, event: str, count: int) -> float:
    """Wait until ``event`` has happened ``count`` times to three nodes; when the last one was."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        seen = [e for e in job.events() if e["event"] == event and e.get("members") == 3]
        if len(seen) >= count:
            return float(seen[count - 1]["time"])
        time.sleep(0.002)
    raise TimeoutError(f"no {count} times {event} of 3 nodes:\n{job.nodes[0].text()[-2000:]}")


@dataclasses.dataclass
class Outcome:
    """Of one run: the survivors' longest gap from the fault to the second merge after it, and when
    it ended, in seconds from the fault; what a sync usually takes as the script sees it (median
    and longest, before the fault), attempts of the round, steps lost."""

    gap: float
    gap_at: float
    usual: float
    longest: float
    attempts: int
    lost: float


def steps_lost(rank: int, rows: Rows, events: Sequence[dict[str, Any]]) -> float:
    """By how many steps node ``rank`` saw the model move less than the committed rounds say.

    A round moves the model by the mean of its members' steps, each weighted by its own: less
    than a whole interval where a node came late.
    """
    moved = next(row["moved"] for row in rows if "moved" in row)
    mine = [event for event in events if event.get("node") == rank]
    first = next(event.get("version", 0) for event in mine if event["event"] == "joined")
    last = next(event["version"] for event in mine if event["event"] == "left")
    return float(
        sum(
            event["steps"]
            for event in events
            if event["event"] == "committed" and first < event["version"] <= last
        )
        - moved
    )


def outcome(survivors: Sequence[Rows], events: Sequence[dict[str, Any]], at: float) -> Outcome:
    """What the survivors' rows and the job's events say of a fault at the time ``at``."""
    rows = [row for rows in survivors for row in rows if "at" in row]
    merges = [row for row in rows if row["step"] % EVERY == 0 and row["step"] > EVERY]
    before = [row["seconds"] for row in merges if row["at"] < at]
    committed = [event for event in events if event["event"] == "committed"]
    attempts = [event.get("attempt", 1) for event in committed]
    after = [event["time"] for event in committed if event.get("time", 0) > at]
    # What comes later is the same as before the fault; the second merge's own row is still seen.
    until = after[1] + EVERY * STEP_MS / 2e3 if len(after) > 1 else math.inf
    worst = max((row for row in rows if at < row["at"] <= until), key=lambda r: r["longest_gap"])
    return Outcome(
        gap=worst["longest_gap"],
        gap_at=worst["at"] - at,
        usual=median(before),
        longest=max(before),
        attempts=max(attempts, default=1),
        lost=max(steps_lost(rank, rows, events) for rank, rows in enumerate(survivors)),
    )


def one(
    directory: pathlib.Path, mib: float, delay: float | None, fault: Callable[[Node, int], None]
) -> Outcome:
    """One run of three nodes; the fault comes ``delay`` s after a sync, None: inside the next."""
    options = ["--sync_interval", str(EVERY), "--min_nodes", "2", "--lease", str(LEASE_SECONDS)]
    loop = ["--mib", str(mib), "--every", str(EVERY), "--syncs", str(SYNCS)]
    with Job(directory, options=options) as job:
        nodes = [job.start(r, LOOP, [*loop, "--step_ms", str(STEP_MS)]) for r in range(3)]
        synced = wait_for(job, "committed", WARM)
        rank = rank_pid(nodes[2])
        if delay is None:
            wait_for(job, "begin", WARM + 1)
        else:
            time.sleep(max(0.0, synced + delay - time.time()))
        at = time.time()
        fault(nodes[2], rank)
        job.wait(180, nodes[:2])
        rows = [rows_of(node.output) for node in nodes[:2]]
        events = job.events()
    return outcome(rows, events, at)


def torchft_gap(fault: str) -> float | None:
    """The surviving replica's longest gap in torchft after ``fault`` of the other."""
    python = torchft_python()
    if python is None:
        return None
    quiet = {"stderr": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    server = subprocess.Popen([python, "-c", LIGHTHOUSE, "1"], **quiet)  # type: ignore[call-overload]
    replicas = []
    try:
        address = server.stdout.readline().strip()
        loop = ["--mib", "1.1", "--every", "20", "--step_ms", "20"]
        for index, syncs in enumerate((16, 6 if fault == "leave" else 16)):
            command = [python, str(TORCHFT_LOOP), *loop, "--syncs", str(syncs)]
            env = torchft_env(address, index)
            replicas.append(subprocess.Popen(command, env=env, **quiet))  # type: ignore[call-overload]
        if fault == "kill":
            while '"step": 6' not in replicas[1].stdout.readline():
                pass
            time.sleep(0.1)
            replicas[1].kill()
        shown, _ = replicas[0].communicate(timeout=120)
    finally:
        for process in (*replicas, server):
            process.kill()
            process.wait()
    rows = [json.loads(line) for line in re.findall(r"^{.*}$", shown, re.M)]
    return float(max(row["longest_gap"] for row in rows if row.get("step", 0) > 5))


@dataclasses.dataclass
class Case:
    """One fault: its title, the model, when, what, and the longest gap allowed."""

    title: str
    mib: float
    delay: float | None
    fault: Callable[[Node, int], None]
    allowed: Callable[[Outcome], float]  # seconds
    peer: str = ""


def cases() -> dict[str, Case]:
    between = 0.4 * EVERY * STEP_MS / 1e3
    return {
        "kill": Case("SIGKILL between rounds, 1.1 MiB", 1.1, between, kill,
                     lambda o: 0.2 + o.usual, "kill"),
        # The attempt that was cut off, and the one that is run again.
        "kill-inside": Case("SIGKILL inside a round, 61.7 MiB", 61.7, None, kill,
                            lambda o: 0.2 + 2 * o.usual),
        "leave": Case("leave (SIGTERM), 1.1 MiB", 1.1, between, leave,
                      lambda o: o.longest + STEP_MS / 1e3, "leave"),
        "stop": Case(f"SIGSTOP, lease {LEASE_SECONDS} s, 1.1 MiB", 1.1, between, stop,
                     lambda o: LEASE_SECONDS + 0.2 + o.usual),
    }  # fmt: skip


def run_case(
    report: Report, case: Case, directory: pathlib.Path, tries: int, with_peer: bool
) -> None:
    """The median and the worst of the tries; of a fault inside a round, of those that hit one."""
    results = [
        one(directory / str(number), case.mib, case.delay, case.fault) for number in range(tries)
    ]
    hit = [r for r in results if case.delay is not None or r.attempts > 1] or results
    hit.sort(key=lambda r: r.gap / case.allowed(r))
    lost = max(r.lost for r in results)
    for which, result in (("median", hit[(len(hit) - 1) // 2]), ("worst", hit[-1])):
        bound = case.allowed(result)
        note = (
            f"usual sync {result.usual * 1e3:.0f} ms, attempts {result.attempts}, seen "
            f"{result.gap_at:.1f} s after; of all {tries} tries: steps lost {lost:.1f}"
        )
        report.add(
            Row(f"{case.title}, longest gap, {which} of {len(hit)}", result.gap * 1e3, "ms",
                result.gap / bound, f"{bound * 1e3:.0f} ms", "<= 1", note)
        )  # fmt: skip
    if with_peer and case.peer and (theirs := torchft_gap(case.peer)) is not None:
        against = "solo's worst gap"
        report.add(
            Row(f"  torchft: {case.peer}", theirs * 1e3, "ms", theirs / hit[-1].gap, against)
        )


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--case", choices=list(cases()), action="append", help="only this fault")
    options.add_argument("--tries", type=int, help="runs of each fault; 3, --quick: 1")
    options.add_argument("--no_peer", action="store_true", help="without torchft")
    args = options.parse_args()
    tries = args.tries or (1 if args.quick else 3)
    report = Report("bench_recover", as_json=args.json)
    with tempfile.TemporaryDirectory() as name:
        for key, case in cases().items():
            if not args.case or key in args.case:
                run_case(report, case, pathlib.Path(name) / key, tries, not args.no_peer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
