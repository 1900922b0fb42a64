"""Every collective of the backend "solo" against what its definition says, on one host."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run
from torch import Tensor

warnings.filterwarnings("ignore", category=FutureWarning)

WORLDS = [1, 2, 3, 4]
# Below, at and beyond the sizes at which another way is taken.
COUNTS = [0, 1, 7, 1000, 16384, 16385, 131072, 300007, 1048583]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
WIDE = [torch.uint16, torch.uint32, torch.uint64]
FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]
COMPLEX = [torch.complex64, torch.complex128]
MOVABLE = [*FLOATS, *INTEGERS, *WIDE, *FP8, *COMPLEX, torch.bool]


def values(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """Small whole numbers that differ by rank and place: sums are exact in every dtype."""
    return ((torch.arange(count) * 7 + rank * 3) % 5).to(dtype)


def raw(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.numel() else tensor


def same(got: Tensor, want: Tensor) -> bool:
    return got.dtype == want.dtype and torch.equal(raw(got), raw(want))


@pytest.mark.parametrize("world", WORLDS)
def test_all_reduce_sums_every_size(world: int) -> None:
    def body(rank: int, world: int) -> None:
        for count in COUNTS:
            tensor = values(rank, count, torch.float32)
            dist.all_reduce(tensor)
            want = sum((values(i, count, torch.float32) for i in range(world)), torch.zeros(count))
            assert same(tensor, want), count

    run(body, world)


OPERATORS: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "SUM": (dist.ReduceOp.SUM, lambda all_: all_.sum(0)),
    "AVG": (dist.ReduceOp.AVG, lambda all_: all_.sum(0) / all_.shape[0]),
    "PRODUCT": (dist.ReduceOp.PRODUCT, lambda all_: all_.prod(0)),
    "MIN": (dist.ReduceOp.MIN, lambda all_: all_.min(0).values),
    "MAX": (dist.ReduceOp.MAX, lambda all_: all_.max(0).values),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_on_every_number(name: str) -> None:
    operator, definition = OPERATORS[name]

    def body(rank: int, world: int) -> None:
        for dtype in [*FLOATS, *INTEGERS, *WIDE, *FP8]:
            for count in (3, 100003):
                tensor = values(rank, count, dtype)
                dist.all_reduce(tensor, op=operator)
                everyone = torch.stack([values(i, count, torch.float64) for i in range(world)])
                want = definition(everyone)
                whole = not dtype.is_floating_point  # averages of them are truncated
                exact = (want.long() if whole else want.float() if dtype in FP8 else want).to(dtype)
                assert same(tensor, exact), (dtype, count)

    run(body, 4)  # a power of two: 1 / 4 is exact


def test_bitwise_operators_on_integers_and_bool() -> None:
    def body(rank: int, world: int) -> None:
        for dtype in [*INTEGERS, torch.bool]:
            everyone = [values(i, 1000, dtype) for i in range(world)]
            for operator, definition in (
                (dist.ReduceOp.BAND, torch.bitwise_and),
                (dist.ReduceOp.BOR, torch.bitwise_or),
                (dist.ReduceOp.BXOR, torch.bitwise_xor),
            ):
                want = everyone[0]
                for other in everyone[1:]:
                    want = definition(want, other)
                tensor = everyone[rank].clone()
                dist.all_reduce(tensor, op=operator)
                assert same(tensor, want), (dtype, operator)

    run(body, 3)


def test_where_gloo_is_wrong_or_refuses() -> None:
    def body(rank: int, world: int) -> None:
        flags = torch.tensor([True, False])
        dist.all_reduce(flags)
        assert raw(flags).tolist() == [1, 0]  # a bool stays a bool
        large = torch.full((10,), 40000.0, dtype=torch.float16)
        dist.all_reduce(large, op=dist.ReduceOp.AVG)
        assert (large == 40000).all()  # summed in fp32, rounded once
        whole = torch.tensor([rank, -rank * 3])
        dist.all_reduce(whole, op=dist.ReduceOp.AVG)
        assert whole.tolist() == [0, -1]  # truncated: 1/2 and -3/2
        pairs = torch.tensor([1 + 2j]) * (rank + 1)
        dist.all_reduce(pairs)
        assert pairs.tolist() == [3 + 6j]
        scaled = torch.full((4,), 2.0)
        dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(0.5))
        assert scaled.tolist() == [2.0] * 4

    run(body, 2)


def test_sums_of_16_bits_are_rounded_once_and_equal_on_every_rank() -> None:
    def body(rank: int, world: int) -> bytes:
        for dtype in (torch.float16, torch.bfloat16):
            generator = torch.Generator().manual_seed(5)
            everyone = torch.randn(world, 70001, generator=generator).to(dtype)
            tensor = everyone[rank].clone()
            dist.all_reduce(tensor)
            total = everyone[0].float()
            for other in everyone[1:]:
                total = total + other.float()
            assert same(tensor, total.to(dtype))
        return bytes(raw(tensor).numpy())

    results = run(body, 4)
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("world", [2, 3])
def test_every_dtype_moves_as_bytes(world: int) -> None:
    def body(rank: int, world: int) -> None:
        for dtype in MOVABLE:
            for count in (5, 200003):
                tensor = values(rank, count, dtype)
                dist.broadcast(tensor, 1)
                assert same(tensor, values(1, count, dtype)), dtype
                out = [torch.empty(count, dtype=dtype) for _ in range(world)]
                dist.all_gather(out, values(rank, count, dtype))
                assert all(same(out[i], values(i, count, dtype)) for i in range(world)), dtype
                taken = torch.empty(count, dtype=dtype)
                given = [values(i + 9, count, dtype) for i in range(world)]
                dist.scatter(taken, given if rank == 0 else None, 0)
                assert same(taken, values(rank + 9, count, dtype)), dtype
                dist.all_to_all(out, [values(10 * rank + i, count, dtype) for i in range(world)])
                for i in range(world):
                    assert same(out[i], values(10 * i + rank, count, dtype)), dtype
                if not dtype.is_complex:
                    dist.gather(values(rank, count, dtype), out if rank == 1 else None, dst=1)

    run(body, world)


@pytest.mark.parametrize("world", WORLDS)
def test_gather_and_all_gather_and_reduce(world: int) -> None:
    def body(rank: int, world: int) -> None:
        last = world - 1
        for count in (0, 3, 70000, 600000):
            own = values(rank, count, torch.float32)
            out = [torch.empty(count) for _ in range(world)]
            dist.gather(own, out if rank == last else None, dst=last)
            if rank == last:
                assert all(same(out[i], values(i, count, torch.float32)) for i in range(world))
            whole = torch.empty(world * count)
            dist.all_gather_into_tensor(whole, own)
            everyone = torch.stack([values(i, count, torch.float32) for i in range(world)])
            assert same(whole, everyone.flatten())
            tensor = own.clone()
            dist.reduce(tensor, last)
            assert same(tensor, everyone.sum(0) if rank == last else own)

    run(body, world)


@pytest.mark.parametrize("world", WORLDS)
def test_reduce_scatter_even_and_uneven(world: int) -> None:
    def body(rank: int, world: int) -> None:
        for count in (1, 1000, 400001):
            whole = torch.arange(world * count, dtype=torch.float64) + rank
            out = torch.empty(count, dtype=torch.float64)
            dist.reduce_scatter_tensor(out, whole)
            want = (torch.arange(count) + rank * count).double() * world + sum(range(world))
            assert same(out, want)
            pieces = [torch.full((count + i,), float(rank + i)) for i in range(world)]
            out = torch.empty(count + rank)
            dist.reduce_scatter(out, pieces)
            assert (out == sum(range(world)) + world * rank).all()

    run(body, world)


@pytest.mark.parametrize("world", WORLDS)
def test_uneven_parts(world: int) -> None:
    def body(rank: int, world: int) -> None:
        for scale in (1, 90001):

            def part(source: int, target: int, scale: int = scale) -> Tensor:
                return torch.full(((source + 2 * target) * scale,), float(10 * source + target))

            gathered = [torch.empty(i * scale) for i in range(world)]
            dist.all_gather(gathered, torch.full((rank * scale,), float(rank)))
            assert all((gathered[i] == i).all() for i in range(world))
            out = [torch.empty_like(part(i, rank)) for i in range(world)]
            dist.all_to_all(out, [part(rank, i) for i in range(world)])
            assert all(same(out[i], part(i, rank)) for i in range(world))
            rows = torch.cat([part(rank, i) for i in range(world)])
            received = torch.empty(sum(len(part(i, rank)) for i in range(world)))
            dist.all_to_all_single(
                received,
                rows,
                [len(part(i, rank)) for i in range(world)],
                [len(part(rank, i)) for i in range(world)],
            )
            assert same(received, torch.cat([part(i, rank) for i in range(world)]))

    run(body, world)


def test_strided_and_empty_and_sparse_tensors() -> None:
    def body(rank: int, world: int) -> None:
        matrix = torch.arange(12.0).reshape(3, 4) + rank
        dist.all_reduce(matrix.t())
        assert same(matrix, torch.arange(12.0).reshape(3, 4) * 2 + 1)
        columns = torch.zeros(4, 6)
        columns[:, 1::2] = float(rank)
        dist.broadcast(columns[:, 1::2], 1)
        assert (columns[:, 1::2] == 1).all()
        assert (columns[:, ::2] == 0).all()
        dist.all_reduce(torch.empty(0))
        dist.all_reduce(torch.empty(0, 5))
        scalar = torch.tensor(3.0)
        dist.all_reduce(scalar)
        assert scalar.item() == 6
        sparse = torch.sparse_coo_tensor([[rank, 2]], [1.0, 2.0], (4,))
        dist.all_reduce(sparse)
        assert sparse.to_dense().tolist() == [1, 1, 4, 0]

    run(body, 2)


def test_sparse_sums_are_asynchronous_and_keep_their_order() -> None:
    def body(rank: int, world: int) -> None:
        if rank == 1:
            time.sleep(0.5)
        sparse = torch.sparse_coo_tensor([[rank, 2]], [1.0, 2.0], (4,))
        dense = torch.ones(3)
        works = [dist.all_reduce(tensor, async_op=True) for tensor in (sparse, dense, sparse)]
        assert works[0] is not None
        assert rank or not works[0].is_completed()  # the other rank has not come yet
        for work in works:
            assert work is not None
            work.wait()
        assert sparse.to_dense().tolist() == [2, 2, 8, 0]
        assert dense.tolist() == [2, 2, 2]

    run(body, 2)


def test_asynchronous_calls_keep_their_order() -> None:
    def body(rank: int, world: int) -> None:
        tensor = torch.ones(50000)
        works = []
        for _ in range(20):
            works.append(dist.all_reduce(tensor, async_op=True))
            works.append(dist.all_reduce(torch.ones(3), async_op=True))
        dist.all_reduce(tensor)  # inline, after all of them
        assert (tensor == 2.0**21).all()
        assert all(work.is_completed() for work in works)
        assert works[0].get_future().wait()[0] is not None
        chained = dist.all_reduce(torch.ones(2), async_op=True).get_future()
        assert chained.then(lambda done: done.value()[0].sum().item()).wait() == 4.0
        for _ in range(1000):  # dropped without a wait
            dist.all_reduce(torch.ones(1), async_op=True)
        dist.barrier()

    run(body, 2)


def test_coalesced_calls() -> None:
    def body(rank: int, world: int) -> None:
        group = dist.group.WORLD
        tensors = [torch.full((n,), float(rank)) for n in (1, 10, 100000)]
        with dist._coalescing_manager(group):
            for tensor in tensors:
                dist.all_reduce(tensor)
        assert all((tensor == 1).all() for tensor in tensors)
        with dist._coalescing_manager(group, device=torch.device("cpu"), async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor, async_op=True)
        manager.wait()
        assert all((tensor == 2).all() for tensor in tensors)
        outs = [torch.empty(4), torch.empty(6)]
        with dist._coalescing_manager(group):
            for out, count in zip(outs, (2, 3), strict=True):
                dist.all_gather_into_tensor(out, torch.full((count,), float(rank)))
        assert outs[1].tolist() == [0, 0, 0, 1, 1, 1]

    run(body, 2)


def test_objects_and_subgroups() -> None:
    def body(rank: int, world: int) -> None:
        gathered: list[Any] = [None] * world
        dist.all_gather_object(gathered, {"rank": rank, "text": "x" * 1000 * rank})
        assert [entry["rank"] for entry in gathered] == [0, 1, 2]
        objects = ["from 2", [1, 2]] if rank == 2 else [None, None]
        dist.broadcast_object_list(objects, src=2)
        assert objects == ["from 2", [1, 2]]
        taken: list[Any] = [None]
        dist.scatter_object_list(taken, [10, 11, 12] if rank == 0 else None, src=0)
        assert taken == [10 + rank]
        pair = dist.new_group([0, 2])
        alone = dist.new_group([1])
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor, group=alone if rank == 1 else pair)
        assert tensor[0] == (1 if rank == 1 else 2)
        dist.barrier()

    run(body, 3)
