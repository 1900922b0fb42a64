"""What a fault costs the survivors: their longest gap between two steps, and the steps redone.

Three nodes run a loop of sleeping steps with real merges. A member is killed between rounds and
inside one, leaves, or is stopped; torchft runs the cases that it can do, two replicas, beside it.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from benchmarks.bench_sync import LIGHTHOUSE, LOOP, TORCHFT_LOOP, rows_of
from benchmarks.nodes import Job, Node
from benchmarks.peers import torchft_python
from benchmarks.report import Report, Row, median, parser

EVERY, STEP_MS = 100, 10
LEASE_SECONDS = 3


def rank_pid(node: Node) -> int:
    """The pid of the node's only rank: a child of torchrun that is not a helper of ours."""
    shown = subprocess.run(
        ["pgrep", "-P", str(node.process.pid), "-f", "sync_loop"], capture_output=True, text=True
    ).stdout.split()
    return int(shown[0])


def kill(node: Node) -> None:
    os.kill(rank_pid(node), signal.SIGKILL)
    node.kill()


def stop(node: Node) -> None:
    os.kill(rank_pid(node), signal.SIGSTOP)


def wait_for_sync(node: Node, count: int) -> float:
    """Wait until the node has seen ``count`` syncs; the time when the last one ended."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        rows = [row for row in rows_of(node.output) if row.get("step", 1) % EVERY == 0]
        if len(rows) >= count:
            return rows[count - 1]["at"]
        time.sleep(0.01)
    raise TimeoutError(f"node {node.rank} did not reach sync {count}:\n{node.text()[-2000:]}")


def one(
    directory: pathlib.Path, mib: float, delay: float, fault: Callable[[Node], None]
) -> tuple[float, float, int]:
    """The survivors' longest gap after the fault, the usual sync, and the most attempts."""
    options = ["--sync_interval", str(EVERY), "--min_nodes", "1", "--lease", str(LEASE_SECONDS)]
    loop = ["--mib", str(mib), "--every", str(EVERY), "--syncs", "9", "--step_ms", str(STEP_MS)]
    with Job(directory, options=options) as job:
        nodes = [job.start(rank, LOOP, loop) for rank in range(3)]
        synced = wait_for_sync(nodes[0], 4)
        time.sleep(max(0.0, synced + delay - time.time()))
        at = time.time()
        fault(nodes[2])
        job.wait(180, nodes[:2])
        rows = [row for node in nodes[:2] for row in rows_of(node.output) if "at" in row]
        events = job.events()
    after = max(row["longest_gap"] for row in rows if row["at"] > at)
    usual = median([row["seconds"] for row in rows if row["at"] < at and row["step"] > EVERY])
    attempts = [event.get("attempt", 1) for event in events if event["event"] == "committed"]
    return after, usual, max(attempts, default=1)


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
            env = {**os.environ, "LIGHTHOUSE": address, "REPLICA": str(index)}
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
    return max(row["longest_gap"] for row in rows[5:])


def main() -> int:
    args = parser(__doc__).parse_args()
    report = Report("bench_recover", as_json=args.json)
    interval = EVERY * STEP_MS / 1e3
    cases = [
        ("SIGKILL between rounds, 1.1 MiB", 1.1, 0.4 * interval, kill, "kill"),
        ("SIGKILL inside a round, 61.7 MiB", 61.7, 0.0, kill, None),
        ("leave (SIGTERM), 1.1 MiB", 1.1, 0.4 * interval, Node.terminate, "leave"),
        (f"SIGSTOP, lease {LEASE_SECONDS} s, 1.1 MiB", 1.1, 0.4 * interval, stop, None),
    ]
    with tempfile.TemporaryDirectory() as name:
        for index, (title, mib, delay, fault, peer) in enumerate(cases):
            tries = 6 if delay == 0.0 and not args.quick else 1
            results = []
            for number in range(tries):
                # Inside a round: the next one begins an interval after the last; spread over it.
                at = delay or interval * 1.12 + 0.03 * number
                results.append(one(pathlib.Path(name) / f"{index}-{number}", mib, at, fault))
            hit = [result for result in results if result[2] > 1] or results
            gap, usual, attempts = max(hit)
            note = f"usual sync {usual * 1e3:.0f} ms, attempts {attempts}"
            report.add(Row(title, gap * 1e3, "ms", gap / usual, "usual sync", note=note))
            if peer and (theirs := torchft_gap(peer)) is not None:
                row = Row(f"  torchft: {peer}", theirs * 1e3, "ms", theirs / gap, "solo's gap")
                report.add(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
