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


def run(
    body: Body,
    world: int,
    *,
    timeout_s: float = 20,
    backend: str = "solo",
    hosts: int = HOSTS,
    lost: tuple[int, ...] = (),
) -> list[Any]:
    """What ``body(rank, world)`` returned on each rank; fails with the ranks' tracebacks.

    Args:
        body: runs on every rank, which is a fork of this process.
        world: number of ranks.
        timeout_s: of the process group.
        backend: of the process group.
        hosts: ranks are told apart as if on so many hosts.
        lost: ranks that stop or die in ``body``; they are ended once the others are through.
    """
    with tempfile.TemporaryDirectory() as folder:
        ranks = [Rank(body, rank, world, f"{folder}/store", timeout_s, backend, hosts)
                 for rank in range(world)]  # fmt: skip
        results = [None if rank.rank in lost else rank.result(60) for rank in ranks]
        for rank in lost:
            ranks[rank].process.kill()
            ranks[rank].process.join()
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
        self, body: Body, rank: int, world: int, store: str, timeout_s: float, name: str, hosts: int
    ) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        arguments = (body, rank, world, store, timeout_s, name, hosts, theirs)
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
    body: Body,
    rank: int,
    world: int,
    store: str,
    timeout_s: float,
    name: str,
    hosts: int,
    pipe: Connection,
) -> None:
    torch.set_num_threads(1)
    if hosts > 1:
        os.environ["SOLO_HOST_ID"] = f"host-{rank % hosts}"
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
