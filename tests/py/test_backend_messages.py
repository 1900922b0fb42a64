"""send and recv of the backend "solo" on one host."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import run

SIZES = [0, 1, 1000, 1024, 1025, 5000, 1000003]


@pytest.mark.parametrize("world", [2, 3])
def test_messages_of_every_size_arrive(world: int) -> None:
    def body(rank: int, world: int) -> None:
        after, before = (rank + 1) % world, (rank - 1) % world
        for size in SIZES:
            got = torch.empty(size)
            work = dist.irecv(got, before)
            dist.send(torch.arange(size).float() + rank, after)
            assert work is not None
            work.wait()
            assert torch.equal(got, torch.arange(size).float() + before)

    run(body, world)


def test_tags_are_matched_whatever_the_order() -> None:
    def body(rank: int, world: int) -> None:
        for size in (4, 100000):
            if rank == 0:
                works = [
                    dist.isend(torch.full((size,), float(tag)), 1, tag=tag) for tag in range(9)
                ]
                for work in works:
                    assert work is not None
                    work.wait()
            else:
                for tag in (8, 0, 5, 1, 7, 2, 6, 3, 4):
                    got = torch.empty(size)
                    dist.recv(got, 0, tag=tag)
                    assert (got == tag).all()

    run(body, 2)


def test_messages_of_one_tag_keep_their_order() -> None:
    def body(rank: int, world: int) -> None:
        sizes = [3, 50000, 3, 3, 50000, 2000, 1]
        if rank == 0:
            for index, size in enumerate(sizes * 20):
                dist.send(torch.full((size,), float(index)), 1)
        else:
            for index, size in enumerate(sizes * 20):
                got = torch.empty(size)
                dist.recv(got, 0)
                assert (got == index).all()

    run(body, 2)


def test_receive_from_any_rank_says_which() -> None:
    def body(rank: int, world: int) -> None:
        if rank == 0:
            seen = set()
            for _ in range(world - 1):
                got = torch.empty(1)
                source = dist.recv(got)
                assert got.item() == source
                seen.add(source)
            assert seen == {1, 2}
        else:
            dist.send(torch.tensor([float(rank)]), 0)

    run(body, 3)


def test_a_batch_both_ways_does_not_lock_up() -> None:
    def body(rank: int, world: int) -> None:
        other = 1 - rank
        out, got = torch.full((300000,), float(rank)), torch.empty(300000)
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.irecv, got, other), dist.P2POp(dist.isend, out, other)]
        )
        for work in works:
            work.wait()
        assert (got == other).all()

    run(body, 2)


def test_lengths_that_differ_are_an_error_that_names_both() -> None:
    def body(rank: int, world: int) -> None:
        if rank == 0:
            dist.send(torch.empty(10), 1)
            with pytest.raises(RuntimeError, match=r"400000 bytes.*expects 800000"):
                dist.send(torch.empty(100000), 1)
        else:
            with pytest.raises(RuntimeError, match=r"rank 0 has 40 bytes.*expects 80"):
                dist.recv(torch.empty(20), 0)
            with pytest.raises(RuntimeError, match=r"rank 0 has 400000 bytes.*expects 800000"):
                dist.recv(torch.empty(200000), 0)
        dist.barrier()

    run(body, 2)
