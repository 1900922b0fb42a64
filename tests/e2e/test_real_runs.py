"""Whole runs as users make them: several ``solorun --solo`` and an unmodified script."""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil
import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "py"))
from solorun_process import free_port, start

DEADLINE_S = 120.0
SCRIPT = """
import os, time, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("gloo")
model = DDP(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
teacher = torch.linspace(-1, 1, 32)
def batch():
    x = torch.randn(64, 32)
    return x, (x @ teacher).unsqueeze(1)
torch.manual_seed(1000 + os.getpid())
losses = []
stop = os.environ.get("STOP")
while len(losses) < int(os.environ["STEPS"]) and not (stop and os.path.exists(stop)):
    x, y = batch()
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if stop:
        time.sleep(0.02)
dist.destroy_process_group()
values = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
torch.save({"values": values, "losses": losses},
           os.environ["RESULT"] + "." + os.environ["LOCAL_RANK"])
"""


class Run:
    """A job of real nodes in a folder of its own."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.script = folder / "train.py"
        self.script.write_text(SCRIPT)
        self.url = f"tcp://127.0.0.1:{free_port()}"
        self.nodes: dict[int, subprocess.Popen[str]] = {}
        self.texts: dict[int, pathlib.Path] = {}

    def node(
        self, rank: int, *words: str, prefix: Sequence[str] = (), **env: str
    ) -> subprocess.Popen[str]:
        name = f"node{rank}.{len(list(self.folder.glob('*.txt')))}"
        self.texts[rank] = self.folder / f"{name}.txt"
        env = {"STEPS": "100", "RESULT": str(self.folder / f"result{rank}"), **env}
        with self.texts[rank].open("w") as text:
            self.nodes[rank] = start(
                "--solo",
                f"--master_url={self.url}",
                f"--node_rank={rank}",
                f"--log_dir={self.folder}/logs",
                "--timeout=100",
                "--sync_interval=20",
                *words,
                self.script,
                output=text,
                prefix=prefix,
                **env,
            )
        return self.nodes[rank]

    def said(self, rank: int) -> str:
        return self.texts[rank].read_text()

    def until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            texts = "\n".join(self.said(rank) for rank in self.nodes)
            assert time.monotonic() < deadline, f"waited in vain for {what}:\n{texts}"
            time.sleep(0.05)

    def ended(self, rank: int, code: int) -> None:
        self.until(lambda: self.nodes[rank].poll() is not None, f"the end of node {rank}")
        assert self.nodes[rank].returncode == code, self.said(rank)

    def result(self, rank: int, local: int = 0) -> dict[str, Any]:
        values: dict[str, Any] = torch.load(f"{self.folder}/result{rank}.{local}")
        return values

    def events(self, kind: str) -> list[dict[str, Any]]:
        path = self.folder / "logs" / "train" / "events.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [row for row in rows if row["event"] == kind]


@pytest.fixture
def job(tmp_path: pathlib.Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    for process in made.nodes.values():
        process.kill()  # its ranks die with it
        process.wait()


@pytest.mark.parametrize(
    "words",
    [["--codec=bf16"], ["--codec=int8"], ["--outer=slowmo", "--codec=int8"], ["--outer=nesterov"]],
    ids=" ".join,
)
def test_codecs_and_outer_rules_train_two_real_nodes_to_the_same_bits(
    job: Run, words: list[str]
) -> None:
    for rank in range(2):
        job.node(rank, "--min_nodes=2", *words)
    for rank in range(2):
        job.ended(rank, 0)
    first, second = job.result(0), job.result(1)
    assert torch.equal(first["values"], second["values"])
    assert torch.isfinite(first["values"]).all()
    assert sum(first["losses"][-20:]) < 0.5 * sum(first["losses"][:20])
    assert len(job.events("committed")) >= 5
    assert {row["contributors"] for row in job.events("committed")} == {2}


def test_two_ranks_a_node_outlive_a_killed_node_and_let_it_in_again_and_go(
    job: Run, tmp_path: pathlib.Path
) -> None:
    """Hybrid: DDP between the ranks of a node, solo between nodes."""
    stop = tmp_path / "stop"
    many = {"STEPS": "1000000", "STOP": str(stop)}
    words = ("--device_count=2", "--lease=2s")
    job.node(0, *words, **many)
    job.until(lambda: job.events("committed"), "the first merge")
    job.node(1, *words, **many)
    job.until(lambda: job.events("committed")[-1]["members"] == 2, "a merge of both")
    ranks = psutil.Process(job.nodes[1].pid).children()
    assert len(ranks) == 2
    job.nodes[1].kill()
    job.until(lambda: job.events("lost"), "the loss of node 1")
    psutil.wait_procs(ranks, timeout=10)
    assert not any(rank.is_running() and rank.status() != "zombie" for rank in ranks)
    job.until(lambda: job.events("committed")[-1]["members"] == 1, "a merge without it")
    job.node(1, *words, **many)
    job.until(lambda: job.events("committed")[-1]["members"] == 2, "a merge with it again")
    job.nodes[1].send_signal(signal.SIGTERM)
    job.ended(1, 128 + signal.SIGTERM)
    job.until(lambda: job.events("left"), "its goodbye")
    assert job.events("left")[0]["text"] == "SIGTERM"
    stop.touch()
    job.ended(0, 0)
    assert torch.equal(job.result(0, 0)["values"], job.result(0, 1)["values"])


def test_a_job_that_was_killed_as_a_whole_goes_on_where_its_state_files_end(
    job: Run, tmp_path: pathlib.Path
) -> None:
    stop = tmp_path / "stop"
    many = {"STEPS": "1000000", "STOP": str(stop)}
    words = ("--min_nodes=2", f"--state_dir={tmp_path / 'state'}")
    for rank in range(2):
        job.node(rank, *words, **many)
    job.until(lambda: len(job.events("committed")) >= 10, "ten merges")
    job.until(lambda: len(list((tmp_path / "state").glob("*.state"))) == 2, "two state files")
    everything = [psutil.Process(node.pid) for node in job.nodes.values()]
    everything += [child for node in everything for child in node.children(recursive=True)]
    everything += [p for p in psutil.process_iter(["cmdline"])
                   if f"--master_url={job.url}" in (p.info["cmdline"] or [])]  # fmt: skip
    assert any("master" in process.cmdline() for process in everything)
    for process in everything:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(everything, timeout=20)
    former = job.events("committed")[-1]["version"]
    for rank in range(2):
        job.node(rank, *words, **many)
    job.until(lambda: "is back at version" in job.said(0) + job.said(1), "the former version")
    job.until(lambda: job.events("committed")[-1]["version"] > former + 3, "further merges")
    stop.touch()
    for rank in range(2):
        job.ended(rank, 0)
    first, second = job.result(0), job.result(1)
    assert torch.equal(first["values"], second["values"])
    fresh = 10.0  # where an untrained model begins: the mean square of its targets
    assert first["losses"][0] < fresh / 4 and second["losses"][0] < fresh / 4


def test_solo_disable_leaves_a_plain_run_under_the_same_command(job: Run) -> None:
    job.node(0, SOLO_DISABLE="1")
    job.ended(0, 0)
    assert len(job.result(0)["losses"]) == 100
    assert "founds the job" not in job.said(0)
    assert job.events("joined") == []


PLAIN_USER = ["unshare", "--user", "--map-user=1000"]  # no capability is left after the exec


@pytest.mark.skipif(
    subprocess.run([*PLAIN_USER, "true"], capture_output=True).returncode != 0,
    reason="user namespaces are not allowed here",
)
def test_a_user_without_privileges_runs_a_job(job: Run) -> None:
    """Nothing needs root: sockets, shared memory, pidfd, logs, the death signal."""
    for rank in range(2):
        job.node(rank, "--min_nodes=2", prefix=PLAIN_USER)
    for rank in range(2):
        job.ended(rank, 0)
    assert torch.equal(job.result(0)["values"], job.result(1)["values"])
