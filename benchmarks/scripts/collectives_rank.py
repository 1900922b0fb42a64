"""One rank of bench_collectives: does what it is told over a local socket, and says how long.

    collectives_rank.py SOCKET LIBRARY RANK WORLD STORE

LIBRARY is solo or gloo (torch.distributed), flat (solo as if every rank were alone on its host),
mpi (mpi4py; rank and world come from mpirun), sockets (the bytes of an all_reduce, or a message
there and back, over bare sockets; STORE is every rank's address), or memory: plain copies and
additions, the traffic that an all_reduce cannot do without, which all ranks begin together and
have done when the last has.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import pathlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Call = Callable[[], Any]
FLIGHT = 8  # all_reduces that are posted before the first is waited for
STREAMS = 4  # of bare sockets to each rank


def torch_call(op: str, count: int, dtype: torch.dtype, rank: int, world: int) -> Call:
    """One collective of torch.distributed on ``count`` elements a rank."""
    tensor = torch.ones(count, dtype=dtype)
    if op == "all_reduce":
        return lambda: dist.all_reduce(tensor)
    if op == "all_reduces":
        tensors = [torch.ones(count, dtype=dtype) for _ in range(FLIGHT)]
        return lambda: [
            work.wait() for work in [dist.all_reduce(each, async_op=True) for each in tensors]
        ]
    if op == "broadcast":
        return lambda: dist.broadcast(tensor, 0)
    if op == "barrier":
        return dist.barrier
    if op == "send_recv":
        other = 1 - rank
        first, second = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)
        return lambda: (first(tensor, other), second(tensor, other))
    if op.startswith("ddp_"):
        return ddp_call(count, op)
    part = count // world
    if op == "all_gather":
        return lambda: dist.all_gather_into_tensor(tensor, tensor[rank * part : (rank + 1) * part])
    if op == "reduce_scatter":
        out = torch.ones(part, dtype=dtype)
        return lambda: dist.reduce_scatter_tensor(out, tensor)
    out = torch.ones(count, dtype=dtype)
    return lambda: dist.all_to_all_single(out, tensor)


def ddp_call(count: int, op: str) -> Call:
    """A step of a DDP model of ``count`` parameters, without optimizer.

    ddp_step: whole; ddp_lone: over a group of this rank alone, so that all that DDP does besides is
    in it, its division of the gradients too; ddp_alone: without DDP's part (no_sync).
    """
    width = 1024 if count > 1 << 22 else 256
    layers = max(count // width**2, 1)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    group = lone_group() if op == "ddp_lone" else None
    ddp = torch.nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=True, process_group=group
    )
    batch = torch.ones(1, width)

    def step() -> None:
        ddp(batch).sum().backward()

    def step_alone() -> None:
        with ddp.no_sync():
            step()

    return step_alone if op == "ddp_alone" else step


@functools.cache
def lone_group() -> dist.ProcessGroup:
    """This rank alone, with the same backend."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    mine = groups[dist.get_rank()]
    assert isinstance(mine, dist.ProcessGroup)
    return mine


def meet(rank: int, hosts: list[str]) -> dict[int, list[socket.socket]]:
    """STREAMS sockets to every other rank; the higher rank dials."""
    listener = socket.create_server((hosts[rank], 29700 + rank), backlog=256)
    streams: dict[int, list[socket.socket]] = {}
    for peer in range(rank):
        for _ in range(STREAMS):
            while True:
                try:
                    stream = socket.create_connection((hosts[peer], 29700 + peer), timeout=60)
                    break
                except ConnectionRefusedError:
                    time.sleep(0.05)
            stream.sendall(bytes([rank]))
            streams.setdefault(peer, []).append(stream)
    for _ in range((len(hosts) - 1 - rank) * STREAMS):
        stream, _ = listener.accept()
        streams.setdefault(stream.recv(1)[0], []).append(stream)
    for stream in itertools.chain(*streams.values()):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.settimeout(60)
    return streams


def receive_all(stream: socket.socket, room: memoryview) -> None:
    while len(room):
        room = room[stream.recv_into(room) :]


def sockets_call(op: str, size: int, rank: int, peers: dict[int, list[socket.socket]]) -> Call:
    """The bytes of an all_reduce, both ways at once; or one message there and back."""
    if op == "send_recv":
        stream, message = peers[1 - rank][0], memoryview(bytearray(size))

        def once() -> None:
            if rank == 0:
                stream.sendall(message)
            receive_all(stream, message)
            if rank == 1:
                stream.sendall(message)

        return once
    share = max(2 * size // (len(peers) + 1) // STREAMS, 1)
    out, room = bytes(share), memoryview(bytearray(share))
    streams = list(itertools.chain(*peers.values()))

    def exchange() -> None:
        threads = [threading.Thread(target=stream.sendall, args=(out,)) for stream in streams]
        threads += [threading.Thread(target=receive_all, args=(s, room)) for s in streams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return exchange


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
        first, second = (comm.Send, comm.Recv) if rank == 0 else (comm.Recv, comm.Send)

        def there_and_back() -> None:
            first(array, 1 - rank)
            second(array, 1 - rank)

        return there_and_back
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


def serve(library: str, rank: int, world: int, store: str, connection: socket.socket) -> None:
    lines = connection.makefile("rw")
    peers = meet(rank, store.split(",")) if library == "sockets" else {}
    for line in lines:
        task = json.loads(line)
        count = max(task["bytes"] // DTYPES[task["dtype"]].itemsize, 1)
        if library == "mpi":
            call = mpi_call(task["op"], count, rank, world)
        elif library == "sockets":
            call = sockets_call(task["op"], task["bytes"], rank, peers)
        elif library == "memory":
            call = memory_call(count, world)
        else:
            call = torch_call(task["op"], count, DTYPES[task["dtype"]], rank, world)
        for _ in range(2):
            call()
        if library == "memory":
            dist.barrier()
        begun = time.perf_counter()
        for _ in range(task["times"]):
            call()
        if library == "memory":
            dist.barrier()
        lines.write(json.dumps((time.perf_counter() - begun) / task["times"]) + "\n")
        lines.flush()


def main() -> None:
    path, library, rank, world, store = sys.argv[1:]
    torch.set_num_threads(1)
    if library == "mpi":
        from mpi4py import MPI

        rank, world = str(MPI.COMM_WORLD.rank), str(MPI.COMM_WORLD.size)
    elif library != "sockets":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if library == "flat":
            os.environ["SOLO_HOST_ID"] = f"alone-{rank}"
        init = store if "://" in store else pathlib.Path(store).as_uri()
        backend = library if library == "gloo" else "solo"
        dist.init_process_group(backend, init_method=init, rank=int(rank), world_size=int(world))
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.sendall(f"{library} {rank}\n".encode())
    serve(library, int(rank), int(world), store, connection)


if __name__ == "__main__":
    main()
