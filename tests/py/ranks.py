"""Runs one function on several ranks, each a forked process with a process group "solo"."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import pathlib
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from solo import backend

# More than one: ranks are told apart as if on so many hosts, and meet over TCP.
HOSTS = int(os.environ.get("SOLO_TEST_HOSTS", "1"))

Body = Callable[[int, int], Any]


def run(body: Body, world: int, *, timeout_s: float = 20, backend: str = "solo") -> list[Any]:
    """What ``body(rank, world)`` returned on each rank; fails with the first rank's traceback."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [Rank(body, rank, world, f"{folder}/store", timeout_s, backend)
                 for rank in range(world)]  # fmt: skip
        results = [rank.result(3 * timeout_s) for rank in ranks]
    faults = [result for result in results if isinstance(result, Fault)]
    if faults:
        raise AssertionError("\n".join(fault.text for fault in faults))
    return results


class Fault:
    def __init__(self, text: str) -> None:
        self.text = text


class Rank:
    """One forked rank; ``process.pid`` is for tests that kill or stop it."""

    def __init__(
        self, body: Body, rank: int, world: int, store: str, timeout_s: float, name: str
    ) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        arguments = (body, rank, world, store, timeout_s, name, theirs)
        self.rank = rank
        self.process = context.Process(target=_rank, args=arguments)
        self.process.start()
        theirs.close()

    def result(self, timeout_s: float) -> Any:
        if not wait([self.pipe], timeout_s):
            self.process.kill()
            return Fault(f"rank {self.rank} did not end within {timeout_s} s")
        try:
            result = self.pipe.recv()
        except EOFError:
            self.process.join()
            return Fault(f"rank {self.rank} ended with exit code {self.process.exitcode}")
        self.process.join()
        return result


def _rank(
    body: Body, rank: int, world: int, store: str, timeout_s: float, name: str, pipe: Connection
) -> None:
    torch.set_num_threads(1)
    if HOSTS > 1:
        os.environ["SOLO_HOST_ID"] = f"host-{rank % HOSTS}"
    backend.register()
    try:
        dist.init_process_group(
            name,
            init_method=pathlib.Path(store).as_uri(),
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=timeout_s),
        )
        result = body(rank, world)
        if dist.is_initialized():
            dist.destroy_process_group()
        pipe.send(result)
    except BaseException:
        pipe.send(Fault(f"rank {rank}:\n{traceback.format_exc()}"))
    pipe.close()
    os._exit(0)
