"""Real jobs for tests: a master, and nodes as threads of this process or as processes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from solo import _C
from solo.config import Config
from solo.errors import SoloError
from solo.schedule import Schedule

T = TypeVar("T")
DEADLINE_S = 90.0  # no job of a test lasts longer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def master(**settings: Any) -> Iterator[str]:
    """A master on a thread of this process; gives its URL."""
    url = f"tcp://127.0.0.1:{free_port()}"
    service = _C.Master(url, **settings)
    failed: list[SoloError] = []

    def run() -> None:
        try:
            service.run()
        except SoloError as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield url
    finally:
        service.stop()
        thread.join(10)
        service.close()
    assert not failed, failed


def settings(url: str, node_rank: int = 0, *, interval: int | str = 1, **more: Any) -> Config:
    """A node's settings in such a job."""
    return dataclasses.replace(
        Config(), master_url=url, node_rank=node_rank, schedule=Schedule.parse(interval),
        timeout=30.0, **more,
    )  # fmt: skip


def nodes(count: int, work: Callable[[int], T]) -> list[T]:
    """Run ``work(node_rank)`` for each node on a thread of its own; the results in order."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + DEADLINE_S
    while any(thread.is_alive() for thread in threads) and not errors:
        threads[-1].join(0.02)
        for thread in threads:
            thread.join(0.02)
        assert time.monotonic() < deadline, "the nodes did not end"
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(count)]


PRELUDE = """
import os, sys
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

NODE = int(os.environ["TEST_NODE"])  # a test's means: users' scripts do not know it
torch.set_num_threads(1)

def result(**values):
    torch.save(values, os.environ["TEST_RESULT"] + "." + os.environ["RANK"])
"""


class Node:
    """One node: its ranks as processes, as torchrun would start them."""

    def __init__(self, job: Job, rank: int, script: pathlib.Path, ranks: int, env: dict[str, str]):
        self.rank = rank
        self.stem = job.folder / f"node{rank}"
        self.count = ranks
        port = str(free_port())
        self.processes: list[subprocess.Popen[bytes]] = []
        for local in range(ranks):
            with pathlib.Path(f"{self.stem}.{local}.log").open("ab") as log:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, script],
                        env={
                            **_clean(),
                            "LOCAL_RANK": str(local),
                            "LOCAL_WORLD_SIZE": str(ranks),
                            "RANK": str(int(env.get("TEST_FIRST", "0")) + local),
                            "WORLD_SIZE": str(ranks),
                            "GROUP_RANK": "0",
                            "TORCHELASTIC_RUN_ID": "test",
                            "MASTER_ADDR": "127.0.0.1",
                            "MASTER_PORT": port,
                            "SOLO_ENABLE": "1",
                            "SOLO_MASTER_URL": job.url,
                            "SOLO_NODE_RANK": str(rank),
                            "SOLO_DEVICE_COUNT": str(ranks),
                            "SOLO_TIMEOUT": "60",
                            "TEST_NODE": str(rank),
                            "TEST_RESULT": str(self.stem),
                            **job.env,
                            **env,
                        },
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )

    def log(self, local: int = 0) -> str:
        return pathlib.Path(f"{self.stem}.{local}.log").read_text()

    def wait(self, code: int | None = 0) -> Node:
        """Wait for all ranks; each must end with ``code`` (None: any)."""
        deadline = time.monotonic() + DEADLINE_S
        for local, process in enumerate(self.processes):
            try:
                ended = process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"node {self.rank} hangs:\n{self.log(local)}") from None
            assert code is None or ended == code, (
                f"node {self.rank} rank {local} ended with {ended}:\n{self.log(local)}"
            )
        return self

    def until(self, text: str) -> None:
        """Wait until the leader has said this."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.log():
            assert time.monotonic() < deadline, f"never said {text!r}:\n{self.log()}"
            assert self.processes[0].poll() is None, f"ended without {text!r}:\n{self.log()}"
            time.sleep(0.02)

    def result(self, local: int = 0) -> dict[str, Any]:
        path = pathlib.Path(f"{self.stem}.{local}")
        assert path.exists(), self.log(local)
        values: dict[str, Any] = torch.load(path, weights_only=False)
        return values

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def _clean() -> dict[str, str]:
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SOLO_", "LOCAL_", "TEST_", "PYTEST_"))
    }


class Job:
    """A job of nodes that are processes.

    Args:
        folder: for scripts, logs and results.
        url: of the master.
        env: for every node.
    """

    def __init__(self, folder: pathlib.Path, url: str, **env: str) -> None:
        self.folder = folder
        self.url = url
        self.env = env
        self._nodes: list[Node] = []

    def start(self, rank: int, script: str, *, ranks: int = 1, **env: str) -> Node:
        """Start a node on this script (its text, after the prelude)."""
        path = self.folder / f"script{rank}.py"
        path.write_text(PRELUDE + textwrap.dedent(script))
        node = Node(self, rank, path, ranks, env)
        self._nodes.append(node)
        return node

    def run(self, script: str, *, count: int = 2, ranks: int = 1, **env: str) -> list[Node]:
        """Run the script on ``count`` nodes that found the job; all must end well."""
        started = [self.start(rank, script, ranks=ranks, **env) for rank in range(count)]
        return [node.wait() for node in started]

    def end(self) -> None:
        for node in self._nodes:
            node.end()


@contextlib.contextmanager
def job(
    folder: pathlib.Path,
    *,
    min_nodes: int = 2,
    linger: bool = False,
    events_path: str | None = None,
    **env: str,
) -> Iterator[Job]:
    """A master and a job that begins when ``min_nodes`` are there."""
    with master(min_nodes=min_nodes, linger=linger, events_path=events_path) as url:
        made = Job(folder, url, SOLO_MIN_NODES=str(min_nodes), **env)
        try:
            yield made
        finally:
            made.end()


def flat(node: Node, local: int = 0) -> torch.Tensor:
    """The state that a rank has given as its result, as one vector."""
    state = node.result(local)["state"]
    return torch.cat([t.detach().double().reshape(-1) for t in state.values()])


def same(*nodes: Node) -> bool:
    """Whether the leaders of these nodes ended with the same bits."""
    return all(torch.equal(flat(node), flat(nodes[0])) for node in nodes)


MODEL = """
def build(seed=None):
    torch.manual_seed(NODE if seed is None else seed)
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.Linear(32, 3))

def data(n=64, seed=None):
    g = torch.Generator().manual_seed(NODE if seed is None else seed)
    return TensorDataset(torch.randn(n, 8, generator=g), torch.randint(0, 3, (n,), generator=g))

def learn(model, optimizer, x, y):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""

DDP_SCRIPT = (
    MODEL
    + """
dist.init_process_group("gloo")
model = DDP(build())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(data(), batch_size=8)
for epoch in range(2):
    for x, y in loader:
        learn(model, optimizer, x, y)
dist.destroy_process_group()
result(state=model.module.state_dict())
"""
)
