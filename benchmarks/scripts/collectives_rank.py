"""One rank of bench_collectives: does what it is told over a local socket, and says how long.

    collectives_rank.py SOCKET LIBRARY RANK WORLD STORE

LIBRARY is solo or gloo (torch.distributed), mpi (mpi4py; rank and world come from mpirun), or
memory: plain copies and additions, the traffic that an all_reduce cannot do without.
"""

from __future__ import annotations

import json
import os
import pathlib
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Call = Callable[[], Any]


def torch_call(op: str, count: int, dtype: torch.dtype, rank: int, world: int) -> Call:
    """One collective of torch.distributed on ``count`` elements a rank."""
    tensor = torch.ones(count, dtype=dtype)
    if op == "all_reduce":
        return lambda: dist.all_reduce(tensor)
    if op == "broadcast":
        return lambda: dist.broadcast(tensor, 0)
    if op == "barrier":
        return dist.barrier
    if op == "send_recv":
        other = 1 - rank
        first, second = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)
        return lambda: (first(tensor, other), second(tensor, other))
    part = count // world
    if op == "all_gather":
        return lambda: dist.all_gather_into_tensor(tensor, tensor[rank * part : (rank + 1) * part])
    if op == "reduce_scatter":
        out = torch.ones(part, dtype=dtype)
        return lambda: dist.reduce_scatter_tensor(out, tensor)
    out = torch.ones(count, dtype=dtype)
    return lambda: dist.all_to_all_single(out, tensor)


def mpi_call(op: str, count: int, rank: int, world: int) -> Call:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    array = torch.ones(count).numpy()
    part = count // world
    if op == "all_reduce":
        return lambda: comm.Allreduce(MPI.IN_PLACE, array)
    if op == "broadcast":
        return lambda: comm.Bcast(array, 0)
    if op == "barrier":
        return comm.Barrier
    if op == "send_recv":
        other = 1 - rank
        if rank == 0:
            return lambda: (comm.Send(array, other), comm.Recv(array, other))
        return lambda: (comm.Recv(array, other), comm.Send(array, other))
    out = torch.ones(count).numpy()
    if op == "all_gather":
        return lambda: comm.Allgather(MPI.IN_PLACE, array)
    if op == "reduce_scatter":
        return lambda: comm.Reduce_scatter_block(array, out[:part])
    return lambda: comm.Alltoall(array, out)


def memory_call(count: int, world: int) -> Call:
    """What an all_reduce must do at least: add up its slice over all ranks, copy in the others."""
    part = count // world
    sources = [torch.ones(part) for _ in range(world)]
    whole, others = torch.ones(count), torch.ones(count)

    def once() -> None:
        torch.add(sources[0], sources[1], out=whole[:part])
        for source in sources[2:]:
            whole[:part] += source
        whole[part:].copy_(others[part:])

    return once


def serve(library: str, rank: int, world: int, connection: socket.socket) -> None:
    lines = connection.makefile("rw")
    for line in lines:
        task = json.loads(line)
        count = max(task["bytes"] // DTYPES[task["dtype"]].itemsize, 1)
        if library == "mpi":
            call = mpi_call(task["op"], count, rank, world)
        elif library == "memory":
            call = memory_call(count, world)
        else:
            call = torch_call(task["op"], count, DTYPES[task["dtype"]], rank, world)
        for _ in range(2):
            call()
        begun = time.perf_counter()
        for _ in range(task["times"]):
            call()
        lines.write(json.dumps((time.perf_counter() - begun) / task["times"]) + "\n")
        lines.flush()


def main() -> None:
    path, library, rank, world, store = sys.argv[1:]
    torch.set_num_threads(1)
    if library == "mpi":
        from mpi4py import MPI

        rank, world = str(MPI.COMM_WORLD.rank), str(MPI.COMM_WORLD.size)
    elif library != "memory":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        init = store if "://" in store else pathlib.Path(store).as_uri()
        dist.init_process_group(library, init_method=init, rank=int(rank), world_size=int(world))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.sendall(f"{library} {rank}\n".encode())
    serve(library, int(rank), int(world), connection)


if __name__ == "__main__":
    main()
