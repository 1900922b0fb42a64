"""Tensors of an accelerator: staged and with NCCL, on a fake device whose streams are late."""

from __future__ import annotations

import ctypes
import os
import pathlib
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from device_ranks import driver_library, here, late, run, to_device
from test_backend_faults import fails
from torch import Tensor

WAYS = pytest.mark.parametrize("nccl", [False, True], ids=["staged", "nccl"])
# One piece, a little more than one, and several: a slot has 4 MiB.
COUNTS = [1, 1000, 1048576, 1048577, 3500000]


def values(rank: int, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return ((torch.arange(count) * 7 + rank * 3) % 5).to(dtype)


def on_device(rank: int, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return to_device(values(rank, count, dtype))


@WAYS
@pytest.mark.parametrize("world", [1, 2, 3])
def test_all_reduce_sums_every_size(nccl: bool, world: int) -> None:
    def body(rank: int, world: int) -> None:
        for count in COUNTS:
            tensor = on_device(rank, count)
            dist.all_reduce(tensor)
            want = sum((values(i, count) for i in range(world)), torch.zeros(count))
            assert torch.equal(tensor.cpu(), want), count

    run(body, world, nccl=nccl)


def test_between_hosts_it_is_staged() -> None:
    def body(rank: int, world: int) -> None:
        for count in COUNTS:
            tensor = on_device(rank, count)
            dist.all_reduce(tensor)
            want = sum((values(i, count) for i in range(world)), torch.zeros(count))
            assert torch.equal(tensor.cpu(), want), count
        assert torch.ops.solo.nccl_calls(dist.group.WORLD.boxed()) == 0

    run(body, 3, nccl=True, hosts=2)


@WAYS
def test_the_tensors_are_read_when_the_streams_say_so_and_used_when_they_may(nccl: bool) -> None:
    def body(rank: int, world: int) -> None:
        tensor = to_device(torch.zeros(100000))
        for turn in range(5):
            late(tensor, rank + turn)  # still under way when all_reduce is called
            work = dist.all_reduce(tensor, async_op=True)
            work.wait()  # the stream waits; the copy to the CPU is enqueued behind that
            assert (tensor.cpu() == 1 + 2 * turn).all()
        chained = dist.all_reduce(tensor, async_op=True).get_future()
        doubled = chained.then(lambda done: done.value()[0].cpu() * 1)
        assert (doubled.wait() == 2 * (1 + 2 * 4)).all()

    run(body, 2, nccl=nccl)


@WAYS
def test_memory_given_up_by_the_caller_is_not_used_again_too_early(nccl: bool) -> None:
    def body(rank: int, world: int) -> None:
        before = torch.ops.fake.memory()
        for _ in range(3):
            tensor = to_device(torch.ones(100000))
            out = [to_device(torch.empty(100000)) for _ in range(world)]
            work = dist.all_gather(out, tensor, async_op=True)
            del tensor
            assert work is not None
            work.wait()
            assert all((part.cpu() == 1).all() for part in out)
            dropped = to_device(torch.ones(100000))
            dist.all_reduce(dropped, async_op=True)
            del dropped
        del out, work
        dist.barrier()
        time.sleep(0.3)
        assert torch.ops.fake.memory() <= before  # nothing is held for ever

    run(body, 2, nccl=nccl)


@WAYS
@pytest.mark.parametrize("count", [3, 700001])
def test_every_collective(nccl: bool, count: int) -> None:
    def body(rank: int, world: int) -> None:
        everyone = torch.stack([values(i, count) for i in range(world)])
        tensor = on_device(rank, count)
        dist.broadcast(tensor, 1)
        assert torch.equal(tensor.cpu(), everyone[1])
        tensor = on_device(rank, count)
        dist.reduce(tensor, 1)
        assert torch.equal(tensor.cpu(), everyone.sum(0) if rank == 1 else everyone[rank])
        out = [to_device(torch.empty(count)) for _ in range(world)]
        dist.all_gather(out, on_device(rank, count))
        assert torch.equal(torch.stack([part.cpu() for part in out]), everyone)
        whole = to_device(torch.empty(world * count))
        dist.all_gather_into_tensor(whole, on_device(rank, count))
        assert torch.equal(whole.cpu(), everyone.flatten())
        share = to_device(torch.empty(count))
        dist.reduce_scatter_tensor(share, to_device(everyone.flatten()))
        assert torch.equal(share.cpu(), everyone[rank] * world)
        dist.reduce_scatter(share, [to_device(part) for part in everyone], op=dist.ReduceOp.AVG)
        assert torch.equal(share.cpu(), everyone[rank])
        dist.gather(on_device(rank, count), out if rank == 0 else None, dst=0)
        assert rank or torch.equal(torch.stack([part.cpu() for part in out]), everyone)
        given = [on_device(9 + i, count) for i in range(world)] if rank == 1 else None
        dist.scatter(share, given, 1)
        assert torch.equal(share.cpu(), values(9 + rank, count))
        dist.all_to_all(out, [on_device(10 * rank + i, count) for i in range(world)])
        for i in range(world):
            assert torch.equal(out[i].cpu(), values(10 * i + rank, count))
        scaled = to_device(torch.full((5,), 2.0))
        dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(0.5))
        assert (scaled.cpu() == world).all()
        dist.barrier()

    run(body, 3, nccl=nccl)


@WAYS
def test_uneven_parts_and_strides(nccl: bool) -> None:
    def body(rank: int, world: int) -> None:
        for scale in (1, 400001):
            gathered = [to_device(torch.empty(i * scale)) for i in range(world)]
            dist.all_gather(gathered, to_device(torch.full((rank * scale,), float(rank))))
            assert all((gathered[i].cpu() == i).all() for i in range(world))
            rows = [torch.full(((rank + 2 * i) * scale,), 10.0 * rank + i) for i in range(world)]
            out = [to_device(torch.empty((i + 2 * rank) * scale)) for i in range(world)]
            dist.all_to_all(out, [to_device(row) for row in rows])
            assert all((out[i].cpu() == 10 * i + rank).all() for i in range(world))
        matrix = to_device(torch.arange(12.0).reshape(3, 4) + rank)
        dist.all_reduce(matrix.t())
        assert torch.equal(matrix.cpu(), torch.arange(12.0).reshape(3, 4) * 3 + 3)
        dist.all_reduce(to_device(torch.empty(0)))

    run(body, 3, nccl=nccl)


@WAYS
def test_every_dtype_moves_and_what_nccl_lacks_goes_another_way(nccl: bool) -> None:
    def body(rank: int, world: int) -> None:
        for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool,
                      torch.int16):  # fmt: skip
            tensor = on_device(rank, 1001, dtype)
            dist.broadcast(tensor, 1)
            assert torch.equal(tensor.cpu(), values(1, 1001, dtype)), dtype
        bits = to_device(torch.tensor([1, 6]) << rank)
        dist.all_reduce(bits, op=dist.ReduceOp.BXOR)
        assert bits.tolist() == [3, 10]
        shorts = on_device(rank, 50, torch.int16)
        dist.all_reduce(shorts)
        assert torch.equal(shorts.cpu(), values(0, 50, torch.int16) + values(1, 50, torch.int16))

    run(body, 2, nccl=nccl)


@WAYS
def test_coalesced_calls(nccl: bool) -> None:
    def body(rank: int, world: int) -> None:
        tensors = [to_device(torch.full((n,), float(rank))) for n in (1, 10, 1200000)]
        with dist._coalescing_manager(dist.group.WORLD):
            for tensor in tensors:
                dist.all_reduce(tensor)
        assert all((tensor.cpu() == 1).all() for tensor in tensors)
        group = dist.group.WORLD
        with dist._coalescing_manager(group, device=here(), async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor, async_op=True)
        manager.wait()
        assert all((tensor.cpu() == 2).all() for tensor in tensors)
        assert manager.works[0].is_completed()

    run(body, 2, nccl=nccl)


@WAYS
def test_calls_on_the_device_and_on_the_cpu_keep_each_their_order(nccl: bool) -> None:
    def body(rank: int, world: int) -> None:
        tensor, other = to_device(torch.ones(50000)), torch.ones(50000)
        for _ in range(10):
            dist.all_reduce(tensor, async_op=True)
            dist.all_reduce(other, async_op=True)
        dist.barrier()
        dist.all_reduce(tensor)
        dist.all_reduce(other)
        assert (tensor.cpu() == 2.0**11).all()
        assert (other == 2.0**11).all()

    run(body, 2, nccl=nccl)


def test_messages_between_devices_and_the_cpu() -> None:
    def body(rank: int, world: int) -> None:
        other = 1 - rank
        for count in (0, 5, 3000000):
            out, got = on_device(rank, count), to_device(torch.empty(count))
            late(out, float(rank), 5000)
            works = dist.batch_isend_irecv(
                [dist.P2POp(dist.irecv, got, other), dist.P2POp(dist.isend, out, other)]
            )
            for work in works:
                work.wait()
            assert (got.cpu() == other).all()
        if rank == 0:
            dist.send(on_device(3, 100), 1, tag=4)
        else:
            plain = torch.empty(100)
            assert dist.recv(plain, tag=4) == 0
            assert torch.equal(plain, values(3, 100))

    run(body, 2)


def test_the_copy_of_the_next_piece_is_not_behind_the_wire() -> None:
    def body(rank: int, world: int) -> list[str]:
        torch.ops.fake.trace(True)
        tensor = to_device(torch.ones(4 * 1048576))
        dist.all_reduce(tensor)
        tensor.cpu()
        return str(torch.ops.fake.traced()).split()

    for traced in run(body, 2):
        # user's copy, then the pieces: one more is under way down than up, and the last read
        ours = traced[1:-1]
        assert ours == ["down", "down", "up", "down", "up", "down", "up", "up"]


@WAYS
@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        ((dist.all_reduce, 1000), (dist.all_reduce, 2000), ("1000", "2000")),
        ((dist.all_reduce, 1048576), (dist.all_reduce, 2097152), ("1048576", "2097152")),
        ((dist.all_reduce, 10), (lambda t: dist.broadcast(t, 0), 10), ("all_reduce", "broadcast")),
        ((lambda t: dist.broadcast(t, 0), 5), (lambda t: dist.broadcast(t, 1), 5), ("root 0",)),
    ],
    ids=["count", "pieces", "call", "root"],
)  # fmt: skip
def test_two_different_calls_are_told_to_both(
    nccl: bool, mine: Any, theirs: Any, words: tuple[str, ...]
) -> None:
    def body(rank: int, world: int) -> None:
        call, count = mine if rank == 0 else theirs
        tensor = to_device(torch.ones(count))
        fails(lambda: call(tensor), "rank 0", "rank 1", *words)

    run(body, 2, nccl=nccl, timeout_s=60)


@WAYS
def test_a_killed_rank_is_told(nccl: bool) -> None:
    def body(rank: int, world: int) -> None:
        tensor = to_device(torch.ones(1000))
        dist.all_reduce(tensor)
        tensor.cpu()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        fails(lambda: dist.all_reduce(tensor).cpu(), "rank 1")
        fails(lambda: dist.all_reduce(tensor), "rank 1")

    run(body, 2, nccl=nccl, timeout_s=300, lost=(1,))


def test_a_rank_killed_while_nccl_works_frees_the_stream_and_breaks_the_group() -> None:
    def body(rank: int, world: int) -> None:
        tensor = to_device(torch.ones(1000))
        dist.all_reduce(tensor)
        tensor.cpu()
        torch.ops.fake.late(0)
        if rank == 1:
            late(tensor, 1.0, 30_000_000)  # its part never begins
        dist.all_reduce(tensor, async_op=True).wait()  # all were there: it was begun
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        tensor.cpu()  # ends, since the communicator was aborted
        fails(lambda: dist.all_reduce(tensor), "rank 1")

    run(body, 2, nccl=True, timeout_s=300, lost=(1,))


def shared_memory() -> set[str]:
    """What is mapped of it, by inode."""
    text = pathlib.Path("/proc/self/maps").read_text()
    rows = [line.split(maxsplit=5) for line in text.splitlines()]
    return {row[4] for row in rows if "memfd:" in row[-1]}


def test_a_group_that_is_given_up_while_nccl_works_is_closed_when_that_is_done() -> None:
    def body(rank: int, world: int) -> None:
        before = shared_memory()
        tensor = to_device(torch.ones(1000))
        dist.all_reduce(tensor)
        tensor.cpu()
        opened = shared_memory() - before
        assert opened
        late(tensor, 1.0, 500_000)
        dist.all_reduce(tensor, async_op=True)  # begun when the group is given up, not done
        dist.destroy_process_group()
        end = time.monotonic() + 20
        while opened & shared_memory() and time.monotonic() < end:
            time.sleep(0.02)
        assert not opened & shared_memory()

    run(body, 2, nccl=True)


def test_two_ranks_on_one_device_do_without_nccl() -> None:
    def body(rank: int, world: int) -> None:
        tensor = to_device(torch.ones(10))
        dist.all_reduce(tensor)
        assert (tensor.cpu() == 2).all()
        assert torch.ops.solo.nccl_calls(dist.group.WORLD.boxed()) == 0

    run(body, 2, nccl=True, one_device=True)


def test_the_first_device_of_two_ranks_is_two_where_each_is_shown_another() -> None:
    def body(rank: int, world: int) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
        tensor = to_device(torch.ones(10))
        dist.all_reduce(tensor)
        assert (tensor.cpu() == 2).all()
        assert torch.ops.solo.nccl_calls(dist.group.WORLD.boxed()) == 1

    run(body, 2, nccl=True, one_device=True)


@pytest.mark.parametrize(("second", "calls"), [("1", 0), ("2", 1)])
def test_the_driver_says_whether_two_ranks_share_a_gpu_under_two_numbers(
    second: str, calls: int
) -> None:
    driver = driver_library()

    def body(rank: int, world: int) -> None:
        ctypes.CDLL(driver)
        os.environ["CUDA_VISIBLE_DEVICES"] = ["0,1", second][rank]
        tensor = torch.ones(10).to(f"privateuseone:{1 - rank}")
        dist.all_reduce(tensor)
        assert (tensor.cpu() == 2).all()
        assert torch.ops.solo.nccl_calls(dist.group.WORLD.boxed()) == calls

    run(body, 2, nccl=True)


def test_nccl_is_used_where_every_rank_has_it() -> None:
    def body(rank: int, world: int) -> None:
        tensor = to_device(torch.ones(10))
        dist.all_reduce(tensor)
        assert (tensor.cpu() == 2).all()
        assert torch.ops.solo.nccl_calls(dist.group.WORLD.boxed()) == 1

    run(body, 2, nccl=True)


def test_abort_frees_a_waiting_call_and_a_new_group_works(tmp_path: Any) -> None:
    store = (tmp_path / "second").as_uri()

    def body(rank: int, world: int) -> None:
        tensor = to_device(torch.ones(10))
        dist.all_reduce(tensor)
        if rank == 0:
            work = dist.all_reduce(tensor, async_op=True)
            time.sleep(0.2)
            dist.group.WORLD.abort()
            fails(work.wait, "abort")
        else:
            time.sleep(0.5)
            fails(lambda: dist.all_reduce(tensor), "abort")
        dist.destroy_process_group()
        dist.init_process_group("solo", init_method=store, rank=rank, world_size=world)
        plain = torch.ones(3)
        dist.all_reduce(plain)
        assert plain.tolist() == [2, 2, 2]

    run(body, 2, timeout_s=60)
