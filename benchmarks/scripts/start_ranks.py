"""Seconds from init_process_group to the end of the first barrier, of the slowest of many ranks.

    start_ranks.py BACKEND WORLD PORT

The ranks are forked from one process that has torch, so that loading it is no part of the time.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist


def rank(backend: str, number: int, world: int, port: int, go: Any, times: Any) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    go.wait()
    begun = time.perf_counter()
    store = f"tcp://127.0.0.1:{port}"
    dist.init_process_group(backend, init_method=store, rank=number, world_size=world)
    dist.barrier()
    times.put(time.perf_counter() - begun)
    go.wait()


def main() -> None:
    backend, world, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    context = multiprocessing.get_context("fork")
    go, times = context.Barrier(world), context.Queue()
    processes = [
        context.Process(target=rank, args=(backend, i, world, port, go, times))
        for i in range(world)
    ]
    for process in processes:
        process.start()
    print(max(times.get(timeout=120) for _ in processes))
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
