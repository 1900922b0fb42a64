"""Validation loss of interval sync against plain DDP at equal tokens, both real runs.

Each arm runs at every learning rate of one small grid on one seed, then at its best rate on the
other seeds; the figure is the mean over seeds of (loss - DDP's) / DDP's. "no sync" merges only
once, at the end. With root, also the time to DDP's final loss over a 100 Mbit/s link.
"""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Sequence

from benchmarks import netlab
from benchmarks.nodes import SOLORUN, Job, json_lines
from benchmarks.report import Report, Row, parser

HERE = pathlib.Path(__file__).parent
LANGUAGE = HERE.parent / "examples" / "char_lm.py"
DIGITS = HERE / "scripts" / "digits_cnn.py"
NODES = 2
SIZE = ("--width", "64", "--layers", "2")  # 0.12 M parameters, 20 ms a step of one core


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way of training: its name and solorun's options (None: plain DDP)."""

    name: str
    options: tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class Task:
    name: str
    script: pathlib.Path
    arguments: tuple[str, ...]
    rates: tuple[float, ...]
    arms: tuple[Arm, ...]


DDP = Arm("DDP", None)
NO_SYNC = Arm("no sync", ("--sync_interval", "1000000", "--no_sync_at_epoch_end"))


def sync(interval: str, outer: str, codec: str = "fp32") -> Arm:
    options = ("--sync_interval", interval, "--outer", outer, "--codec", codec)
    return Arm(f"{outer} H={interval} {codec}", options)


def tasks(steps: int, epochs: int, rates: int) -> list[Task]:
    """The two tasks, each with the first ``rates`` of its learning rates, likeliest first."""
    language = ("--steps", str(steps), "--warmup", str(steps // 10), "--eval_every", "1000000")
    language += SIZE
    return [
        Task(
            "LM", LANGUAGE, language, (8e-3, 4e-3, 16e-3)[:rates],
            (DDP, sync("8", "avg"), sync("32", "avg"), sync("32", "avg", "int8"),
             sync("32", "nesterov"), sync(f"0:1,{steps // 10}:8,{steps // 3}:32", "avg"), NO_SYNC),
        ),
        Task(
            "digits CNN+BN", DIGITS, ("--epochs", str(epochs)), (0.05, 0.1, 0.02)[:rates],
            (DDP, sync("8", "avg"), sync("8", "slowmo"), NO_SYNC),
        ),
    ]  # fmt: skip


def final_loss(
    task: Task, arm: Arm, rate: float, seed: int, directory: pathlib.Path, lab: netlab.Lab | None
) -> float:
    """Train once; the validation loss of the merged model at the end."""
    name = f"{arm.name}-{rate}-{seed}".replace(" ", "_").replace(":", "_").replace(",", "_")
    metrics = directory / f"{name}.jsonl"
    if kept := [row for row in json_lines(metrics) if "final" in row]:
        return float(kept[-1]["validation"])
    metrics.unlink(missing_ok=True)
    own = [*task.arguments, "--lr", str(rate), "--seed", str(seed), "--metrics", str(metrics)]
    options = ["--min_nodes", str(NODES), *(arm.options or ())]
    with Job(directory / name, lab=lab, options=options) as job:
        if arm.options is None:
            job.run(0, [SOLORUN, "--device_count", str(NODES), str(task.script), *own])
        else:
            for rank in range(NODES):
                job.start(rank, task.script, own if rank == 0 else own[:-2])
        for node, code in zip(job.nodes, job.wait(1800), strict=True):
            if code:
                raise RuntimeError(f"{name}: exit code {code}:\n{node.text()[-2000:]}")
    return float(next(row for row in json_lines(metrics) if "final" in row)["validation"])


def best_of(task: Task, arm: Arm, seeds: Sequence[int], directory: pathlib.Path) -> list[float]:
    """Losses over the seeds at the arm's best rate, which the first seed has chosen."""
    first = {r: final_loss(task, arm, r, seeds[0], directory, None) for r in task.rates}
    rate = min(first, key=lambda r: first[r])
    others = [final_loss(task, arm, rate, seed, directory, None) for seed in seeds[1:]]
    return [first[rate], *others, rate]


def compare(report: Report, task: Task, seeds: Sequence[int], directory: pathlib.Path) -> None:
    base: list[float] = []
    for arm in task.arms:
        *losses, rate = best_of(task, arm, seeds, directory)
        base = base or losses
        worse = [100 * (ours / theirs - 1) for ours, theirs in zip(losses, base, strict=True)]
        spread = statistics.stdev(worse) if len(worse) > 1 else 0.0
        mean = statistics.mean(losses)
        note = f"{statistics.mean(worse):+.1f} % against DDP (s.d. {spread:.1f}), lr {rate:g}"
        name = f"{task.name} k={NODES}, {len(seeds)} seeds: {arm.name}"
        report.add(Row(name, mean, "nats", mean / statistics.mean(base), "DDP", note=note))


def times(metrics: pathlib.Path) -> list[tuple[float, float]]:
    """(seconds since the first row, validation loss) of one run."""
    rows = [row for row in json_lines(metrics) if "time" in row]
    return [
        (row["time"] - rows[0]["time"], row["validation"]) for row in rows if "validation" in row
    ]


def time_to_loss(report: Report, steps: int, directory: pathlib.Path) -> None:
    """Seconds to DDP's final loss over 100 Mbit/s, DDP and solo with twice the steps."""
    every = ("--eval_every", "25", "--log_every", "5", "--lr", "4e-3", "--warmup", str(steps // 10))
    env = {"GLOO_SOCKET_IFNAME": "solo0"}
    with netlab.Lab(NODES, rate_mbit=100) as lab:
        metrics = directory / "ddp100.jsonl"
        with Job(directory / "ddp100", lab=lab, env=env) as job:
            for rank in range(NODES):
                job.run(rank, [
                    sys.executable, "-m", "torch.distributed.run", "--nnodes", str(NODES),
                    "--node-rank", str(rank), "--master-addr", lab.address(0), "--master-port",
                    "29511", "--local-addr", lab.address(rank), str(LANGUAGE), "--steps",
                    str(steps), *every, "--metrics", str(metrics),
                ])  # fmt: skip
            job.wait(1800)
        ddp_seconds, target = times(metrics)[-1]
        options = ["--sync_interval", "8", "--codec", "int8", "--min_nodes", str(NODES)]
        metrics = directory / "solo100.jsonl"
        with Job(directory / "solo100", lab=lab, options=options) as job:
            for rank in range(NODES):
                own = ["--steps", str(2 * steps), *every]
                job.start(rank, LANGUAGE, [*own, "--metrics", str(metrics)] if rank == 0 else own)
            job.wait(1800)
    reached = [at for at, loss in times(metrics) if loss <= target]
    report.add(Row(f"100 Mbit/s: DDP, {steps} steps to loss {target:.3f}", ddp_seconds, "s"))
    if reached:
        name = "100 Mbit/s: solo avg H=8 int8 to the same loss"
        report.add(Row(name, reached[0], "s", ddp_seconds / reached[0], "faster than DDP"))
    else:
        report.say("100 Mbit/s: solo did not reach DDP's loss in twice its steps")


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=1000)
    options.add_argument("--epochs", type=int, default=30)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--rates", type=int, default=3, help="of the grid, 1 to 3")
    options.add_argument("--keep", type=pathlib.Path, help="directory for every run's figures")
    options.add_argument("--task", choices=["LM", "digits", "link"], action="append")
    args = options.parse_args()
    seeds = range(1 if args.quick else args.seeds)
    report = Report("bench_quality", as_json=args.json)
    wanted = args.task or ["LM", "digits", "link"]
    with tempfile.TemporaryDirectory() as name:
        directory = args.keep or pathlib.Path(name)
        for task in tasks(args.steps, args.epochs, args.rates):
            if task.name.split()[0] in wanted:
                compare(report, task, list(seeds), directory / task.name.split()[0])
        reason = netlab.why_not()
        if reason and "link" in wanted:
            report.say(f"the link's part is left out: {reason}")
        elif "link" in wanted:
            time_to_loss(report, args.steps // 2, pathlib.Path(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
