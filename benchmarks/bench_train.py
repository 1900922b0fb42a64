"""Step time of plain DDP, of solo and of no communication, over shaped links.

Each node is a network namespace of its own; all run examples/char_lm.py with one thread. DDP is
torchrun + gloo over the same links; "alone" is the same script, as many at once, with nothing
between them. Solo's step is its steps' time without merges plus what a merge costs, spread over
the interval; it is held against the same steps plus what 2(M-1)/M * encoded bytes / rate
predicts. Both come from one run, so that other load of the machine weighs on both; how long the
nodes waited for each other at the boundary, which such load makes, is told beside it.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks import netlab
from benchmarks.nodes import Job, json_lines
from benchmarks.report import Report, Row, median, parser

SCRIPT = pathlib.Path(__file__).parent.parent / "examples" / "char_lm.py"
PARAMETERS = 837_888  # of char_lm's default model; printed by the script's own tensors
CODEC_BITS = {"fp32": 32.0, "bf16": 16.0, "int8": 8.125}
PORT = "29511"


def script_arguments(steps: int, metrics: pathlib.Path) -> list[str]:
    return [
        *("--steps", str(steps), "--log_every", "10", "--eval_every", "1000000"),
        *("--metrics", str(metrics)),
    ]


def step_seconds(metrics: pathlib.Path, skip: int) -> float:
    """Mean seconds of a step, from the times in the script's own metrics, after ``skip`` steps."""
    rows = [row for row in json_lines(metrics) if "loss" in row and row["step"] >= skip]
    if len(rows) < 2:
        raise RuntimeError(f"{metrics.name}: the run left no times; its output is beside it")
    return (rows[-1]["time"] - rows[0]["time"]) / (rows[-1]["step"] - rows[0]["step"])


def run_ddp(lab: netlab.Lab, directory: pathlib.Path, steps: int, count: int) -> float:
    metrics = directory / "ddp.jsonl"
    with Job(directory, lab=lab, env={"GLOO_SOCKET_IFNAME": "solo0"}) as job:
        for rank in range(count):
            job.run(
                rank,
                [
                    *(sys.executable, "-m", "torch.distributed.run"),
                    *("--nnodes", str(count), "--node-rank", str(rank)),
                    *("--master-addr", lab.address(0), "--master-port", PORT),
                    *("--local-addr", lab.address(rank), str(SCRIPT)),
                    *script_arguments(steps, metrics),
                ],
            )
        check(job, 900)
    return step_seconds(metrics, 10)


def run_alone(lab: netlab.Lab, directory: pathlib.Path, steps: int, count: int) -> float:
    with Job(directory, lab=lab) as job:
        for rank in range(count):
            job.run(
                rank,
                [
                    *(sys.executable, "-m", "torch.distributed.run"),
                    *("--standalone", "--local-addr", "127.0.0.1", str(SCRIPT)),
                    *script_arguments(steps, directory / f"alone{rank}.jsonl"),
                ],
            )
        check(job, 900)
    return median([step_seconds(directory / f"alone{r}.jsonl", 10) for r in range(count)])


@dataclasses.dataclass
class Solo:
    """Seconds of a step without merges, and of a merge: moving it, and waiting for the last."""

    bare: float
    merge: float
    waiting: float


def split(seconds: float, steps: int, rounds: Sequence[dict[str, Any]], interval: int) -> Solo:
    """A run of ``steps`` in ``seconds``, cut by the times of its committed rounds.

    The first round is left out of the figures: it opens connections and touches memory first.
    """
    moving = [row["exchange"] + row.get("apply_before", 0) for row in rounds]
    waiting = [row.get("waiting", 0) for row in rounds]
    stood = (sum(moving) + sum(waiting)) * steps / (len(rounds) * interval)
    return Solo((seconds - stood) / steps, median(moving[1:]), median(waiting[1:]))


def run_solo(
    lab: netlab.Lab, directory: pathlib.Path, steps: int, count: int, interval: int, codec: str
) -> Solo:
    options = ["--sync_interval", str(interval), "--codec", codec, "--min_nodes", str(count)]
    with Job(directory, lab=lab, options=options) as job:
        for rank in range(count):
            metrics = directory / f"solo{rank}.jsonl"
            job.start(rank, SCRIPT, script_arguments(steps, metrics))
        check(job, 900)
        rounds = [event for event in job.events() if event["event"] == "committed"]
    whole = [step_seconds(directory / f"solo{r}.jsonl", 10) for r in range(count)]
    merges = [row for row in rounds if row["members"] == count][: steps // interval]
    return split(median(whole) * steps, steps, merges, interval)


def check(job: Job, seconds: float) -> None:
    codes = job.wait(seconds)
    for node, code in zip(job.nodes, codes, strict=True):
        if code:
            raise RuntimeError(f"node {node.rank} ended with {code}:\n{node.text()[-2000:]}")


def sync_seconds(count: int, codec: str, rate_mbit: float) -> float:
    """2(M-1)/M * encoded bytes / rate, in seconds; algorithms.md, section on limits."""
    encoded = PARAMETERS * CODEC_BITS[codec] / 8
    return 2 * (count - 1) / count * encoded / (rate_mbit * 1e6 / 8)


def measure(report: Report, count: int, rate: float, quick: bool) -> None:
    interval, codec = 100, "int8"
    with tempfile.TemporaryDirectory() as name, netlab.Lab(count, rate_mbit=rate) as lab:
        directory = pathlib.Path(name)
        alone = run_alone(lab, directory / "alone", 60 if quick else 110, count)
        solo = run_solo(lab, directory / "solo", 200 if quick else 300, count, interval, codec)
        ddp = run_ddp(lab, directory / "ddp", 30 if quick or rate < 50 else 60, count)
    where = f"M={count} {rate:g} Mbit/s"
    predicted = sync_seconds(count, codec, rate)
    report.add(Row(f"{where}: no communication, step", alone * 1e3, "ms"))
    report.add(Row(f"{where}: DDP (gloo), step", ddp * 1e3, "ms", ddp / alone, "alone"))
    step = solo.bare + solo.merge / interval
    report.add(
        Row(f"{where}: solo H=100 int8, step", step * 1e3, "ms",
            step / (solo.bare + predicted / interval), "its steps + predicted sync", "<= 1.02",
            note=f"{solo.waiting / interval * 1e3:.2f} ms a step waiting for the last node")
    )  # fmt: skip
    report.add(
        Row(f"{where}: solo H=100 int8, sync", solo.merge * 1e3, "ms", solo.merge / predicted,
            "2(M-1)/M bytes/rate")
    )  # fmt: skip
    whole = step + solo.waiting / interval
    bound = ddp > 3 * alone
    report.add(
        Row(f"{where}: DDP's step / solo's", ddp / whole, "times", ddp / whole, "solo",
            ">= 4" if bound and rate == 100 else "")
    )  # fmt: skip


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    options.add_argument("--rates", type=float, nargs="+", default=[1000, 100, 20])
    args = options.parse_args()
    report = Report("bench_train", as_json=args.json)
    if reason := netlab.why_not():
        report.say(f"left out: {reason}")
        return 0
    for count in args.nodes:
        for rate in args.rates:
            measure(report, count, rate, args.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
