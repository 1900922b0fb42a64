"""The main job in three minutes on one machine: nodes come, stall nobody, die, and leave.

    python -m examples.demo

Two nodes, each a real ``solorun --solo`` with its own torchrun, train examples/char_lm.py, which
knows nothing of solo. A third joins half-way, one is killed with SIGKILL, one leaves with
SIGTERM; the rest goes on. Then plain DDP trains on as many tokens, and a table and demo.png show
both. Logs stay in demo-logs/.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import shutil
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.nodes import SOLORUN, Job, Node, json_lines
from examples import demo_picture

ROOT = pathlib.Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "char_lm.py"
LOGS = ROOT / "demo-logs"
BATCH, CONTEXT = 8, 128
SECONDS = 75  # the nodes stop here on a slow machine, whatever step they are at
PARAMETERS = 837_888
STYLES = ("cyan", "magenta", "green", "yellow")


@dataclasses.dataclass
class Watched:
    """A node on the screen: what was last seen of its script."""

    node: Node
    metrics: pathlib.Path
    printed: int = 0
    said_end: bool = False

    def rows(self) -> list[dict[str, Any]]:
        return list(json_lines(self.metrics))

    def step(self) -> int:
        return max((int(row["step"]) for row in self.rows()), default=0)

    def seconds(self) -> float:
        """Since its first line, 0 before."""
        rows = self.rows()
        return time.time() - float(rows[0]["time"]) if rows else 0.0


class Demo:
    """One run of the demo; each method is one act of it."""

    def __init__(self, steps: int, interval: int, console: Console) -> None:
        self.steps = steps
        self.interval = interval
        self.console = console
        self.begun = time.time()
        self.watched: list[Watched] = []
        self.events_seen = 0
        shutil.rmtree(LOGS, ignore_errors=True)
        options = ["--sync_interval", str(interval), "--codec", "int8", "--job_id", "demo"]
        self.job = Job(LOGS / "solo", options=options)

    def say(self, text: str, style: str = "") -> None:
        self.console.print(f"[dim]{time.time() - self.begun:6.1f} s[/]  {text}", style=style)

    # ---- acts ------------------------------------------------------------------------------
    def start(self, rank: int) -> Watched:
        metrics = LOGS / "solo" / f"node{rank}.jsonl"
        arguments = ["--steps", str(self.steps), "--metrics", str(metrics)]
        arguments += ["--log_every", "10", "--eval_every", str(2 * self.interval)]
        arguments += ["--batch", str(BATCH), "--seconds", str(SECONDS)]
        watched = Watched(self.job.start(rank, SCRIPT, arguments), metrics)
        self.watched.append(watched)
        self.say(f"node {rank}: started (solorun --solo --node_rank {rank} …)", STYLES[rank])
        return watched

    def run(self) -> int:
        """Nodes 0 and 1 from the start, 2 from 40 %; 1 is killed at 65 %, 2 leaves at 80 %."""
        first, second = self.start(0), self.start(1)
        third: Watched | None = None
        killed = left = False
        while first.node.process.poll() is None:
            time.sleep(0.2)
            self.show()
            done = max(first.step() / self.steps, first.seconds() / SECONDS)
            if third is None and done >= 0.4:
                third = self.start(2)
            if not killed and third and done >= 0.65 and third.step():
                killed = True
                self.say("node 1: SIGKILL", "bold red")
                second.node.kill()
            if not left and killed and third and done >= 0.8:
                left = True
                self.say("node 2: SIGTERM", "bold yellow")
                third.node.terminate()
        codes = self.job.wait(60)
        self.show()
        return codes[0]

    def reference(self, tokens: int) -> tuple[pathlib.Path, float]:
        """Plain DDP, two ranks on this machine, on as many tokens."""
        steps = max(1, tokens // (2 * BATCH * CONTEXT))
        metrics = LOGS / "ddp.jsonl"
        self.say(f"plain DDP, 2 ranks, {steps} steps: as many tokens")
        begun = time.time()
        with Job(LOGS / "ddp") as job:
            arguments = ["--steps", str(steps), "--metrics", str(metrics), "--log_every", "10"]
            arguments += ["--eval_every", str(2 * self.interval), "--batch", str(BATCH)]
            command = [SOLORUN, "--device_count", "2", str(SCRIPT), *arguments]
            node = job.run(0, command)
            watched = Watched(node, metrics)
            deadline = begun + 300
            while node.process.poll() is None and time.time() < deadline:
                time.sleep(0.2)
                self.show_progress(watched, "DDP")
            if job.wait(1)[0]:
                raise SystemExit(f"the DDP run failed:\n{node.text()[-2000:]}")
        return metrics, time.time() - begun

    # ---- what the screen shows -----------------------------------------------------------------
    def show(self) -> None:
        for event in self.job.events()[self.events_seen :]:
            self.events_seen += 1
            if text := event_text(event):
                self.say(text, "bold")
        for watched in self.watched:
            self.show_progress(watched)

    def show_progress(self, watched: Watched, name: str = "") -> None:
        rank = watched.node.rank
        name = name or f"node {rank}"
        rows = watched.rows()
        for row in rows[watched.printed :]:
            if "validation" in row:
                text = f"validation loss {row['validation']:.3f}"
            elif int(row["step"]) % 50 == 0:
                text = f"loss {row['loss']:.3f}"
            else:
                continue
            self.say(f"{name}: step {int(row['step']):4d}  {text}", STYLES[rank])
        watched.printed = len(rows)
        code = watched.node.process.poll()
        if code is not None and not watched.said_end:
            watched.said_end = True
            self.say(f"{name}: ended, exit code {code}", STYLES[rank])

    def tokens(self) -> int:
        return sum(watched.step() for watched in self.watched) * BATCH * CONTEXT

    def table(self, ddp: pathlib.Path, ddp_seconds: float) -> Table:
        events = self.job.events()
        rounds = [event for event in events if event["event"] == "committed"]
        sent = sum(event.get("bytes", 0) for event in rounds)
        # A ring all-reduce sends 2(k-1)/k of the gradients per rank and step.
        would = sum(2 * (event["members"] - 1) * 4 * PARAMETERS * self.interval for event in rounds)
        first = self.watched[0].rows()
        stalled = sum(stall_seconds(event) for event in rounds)
        seconds = first[-1]["time"] - first[0]["time"]
        table = Table(title="The same tokens, with and without solo", title_justify="left")
        for column in ("", "solo: 2 nodes, +1, −1 killed, −1 left", "DDP: 2 ranks, undisturbed"):
            table.add_column(column)
        table.add_row("validation loss", f"{last_loss(first):.4f}",
                      f"{last_loss(list(json_lines(ddp))):.4f}")  # fmt: skip
        table.add_row("tokens", f"{self.tokens():,}", f"{self.tokens():,}")
        table.add_row("rounds", str(len(rounds)), "every step")
        times = f"{would / max(sent, 1):,.0f} ×"
        table.add_row("sent", f"{sent / 1e6:,.1f} MB", f"{would / 1e6:,.0f} MB ({times})")
        table.add_row("stalled in merges", f"{100 * stalled / seconds:.1f} %", "")
        table.add_row("seconds", f"{seconds:.0f}", f"{ddp_seconds:.0f}")
        return table


def last_loss(rows: list[dict[str, Any]]) -> float:
    return float([row["validation"] for row in rows if "validation" in row][-1])


def stall_seconds(committed: dict[str, Any]) -> float:
    """How long the node that came first to a round stood still for it.

    It stood from its READY, waiting for the others, through the exchange to the end of applying
    the mean; the last is known with the next round only, and taken from there.
    """
    parts = ("waiting", "exchange", "apply_before")
    return sum(float(committed.get(part, 0)) for part in parts)


def event_text(event: dict[str, Any]) -> str:
    """One line for the screen, or "" for what need not be told."""
    node = event.get("node", event.get("rank", "?"))
    why = event.get("text") or ""
    words = {
        "joined": f"node {node} joined ({why})",
        "left": f"node {node} left: {why or 'finished'}",
        "lost": f"node {node} lost: {why}",
        "aborted": f"round aborted and run again: {why}",
        "alone": f"node {node} is alone now and goes on",
        "over": "the job is over",
    }
    return words.get(event["event"], "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500, help="optimizer steps of node 0")
    parser.add_argument("--interval", type=int, default=10)
    args = parser.parse_args()
    console = Console(highlight=False)
    demo = Demo(args.steps, args.interval, console)
    with demo.job:
        code = demo.run()
    if code:
        console.print(demo.watched[0].node.text()[-3000:], markup=False)
        return code
    ddp, seconds = demo.reference(demo.tokens())
    console.print(demo.table(ddp, seconds))
    curves = {f"node {w.node.rank}": w.rows() for w in demo.watched}
    picture = ROOT / "demo.png"
    demo_picture.draw(picture, curves, list(json_lines(ddp)), demo.job.events(), event_text)
    console.print(f"{picture.name}: the loss curves with the events; logs in {LOGS.name}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
