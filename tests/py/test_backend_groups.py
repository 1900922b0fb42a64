"""Groups made from groups: split, shrink, merge, and the contract of reconfigure (torch 2.14)."""

from __future__ import annotations

import datetime
import os
import pathlib
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run

HAS_RECONFIGURE = hasattr(dist.ProcessGroup, "reconfigure")
needs_reconfigure = pytest.mark.skipif(
    not HAS_RECONFIGURE, reason="torch has no reconfigure before 2.14"
)


def total(group: Any, rank: int) -> float:
    tensor = torch.full((1000,), float(rank + 1))
    dist.all_reduce(tensor, group=group)
    return float(tensor[7])


@pytest.mark.parametrize("hosts", [1, 3], ids=["shm", "tcp"])
def test_a_group_shrinks_around_a_rank_that_was_killed(hosts: int) -> None:
    def body(rank: int, world: int) -> None:
        assert total(None, rank) == 6
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(RuntimeError, match="rank 1"):
            total(None, rank)
        shrunk = dist.shrink_group([1], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
        assert shrunk.size() == 2
        assert shrunk.rank() == (0 if rank == 0 else 1)
        assert total(shrunk, rank) == 4  # of ranks 0 and 2

    run(body, 3, hosts=hosts, lost=(1,))


def test_a_group_shrinks_twice() -> None:
    def body(rank: int, world: int) -> None:
        if rank == 3:
            return
        dist.shrink_group([3])
        assert total(None, rank) == 6
        if rank == 2:
            return
        dist.shrink_group([2])
        assert total(None, rank) == 3

    run(body, 4)


def test_groups_are_split_by_the_backend_itself() -> None:
    def body(rank: int, world: int) -> None:
        half = dist.group.WORLD.split_group([0, 2])
        if rank in (0, 2):
            tensor = torch.full((3,), float(rank))
            half.allreduce([tensor]).wait()
            assert tensor.tolist() == [2, 2, 2]
        else:
            assert half is None
        dist.barrier()

    run(body, 3)


def test_a_remote_group_is_merged(tmp_path: pathlib.Path) -> None:
    def body(rank: int, world: int) -> None:
        own = dist.FileStore(str(tmp_path / "merge"), 3)
        merged = dist.group.WORLD.merge_remote_group(
            own, 3, datetime.timedelta(seconds=20), "merged"
        )
        tensor = torch.ones(4)
        merged.allreduce([tensor]).wait()
        assert tensor.tolist() == [3] * 4

    if not hasattr(dist.ProcessGroup, "merge_remote_group"):
        pytest.skip("this torch cannot merge groups")
    run(body, 3)


def handles_of(group: Any, own: str, place: pathlib.Path, count: int) -> list[str]:
    """Every process's handle, in the order of their names: an exchange outside of torch."""
    (place / f"{os.getpid()}.part").write_text(own)
    (place / f"{os.getpid()}.part").rename(place / f"{os.getpid()}.handle")
    deadline = time.monotonic() + 30
    while len(found := sorted(place.glob("*.handle"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [path.read_text() for path in found]


@needs_reconfigure
@pytest.mark.parametrize("hosts", [1, 3], ids=["shm", "tcp"])
def test_a_group_is_formed_anew_without_a_rank_that_was_killed(
    hosts: int, tmp_path: pathlib.Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()

    def body(rank: int, world: int) -> None:
        group = dist.group.WORLD
        c10d = dist.distributed_c10d
        assert c10d._supports_reconfigure()
        own = c10d._get_reconfigure_handle()
        handles = handles_of(group, own, first, 3)
        c10d._reconfigure(uuid=1, handles=handles).wait()
        assert group.size() == 3
        assert handles[group.rank()] == own
        tensor = torch.ones(5)
        group.allreduce([tensor]).wait()
        assert tensor.tolist() == [3] * 5
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(RuntimeError, match="rank"):
            group.allreduce([tensor]).wait()
        fresh = c10d._get_reconfigure_handle()
        assert fresh != own
        with pytest.raises(RuntimeError, match="had before"):
            c10d._reconfigure(uuid=1, handles=[fresh])
        with pytest.raises(RuntimeError, match="not among them"):
            c10d._reconfigure(uuid=5, handles=handles)
        c10d._reconfigure(uuid=2, handles=set(handles_of(group, fresh, second, 2))).wait()
        assert group.size() == 2
        tensor = torch.ones(5)
        group.allreduce([tensor]).wait()
        assert tensor.tolist() == [2] * 5

    run(body, 3, hosts=hosts, lost=(1,))


@needs_reconfigure
def test_a_group_that_is_formed_later_says_so_until_then(tmp_path: pathlib.Path) -> None:
    def body(rank: int, world: int) -> None:
        dist.destroy_process_group()
        dist.init_process_group(
            "solo",
            init_method=(tmp_path / "store").as_uri(),
            rank=rank,
            world_size=world,
            enable_reconfigure=True,
        )
        with pytest.raises(RuntimeError, match="not formed yet"):
            dist.all_reduce(torch.ones(1))
        c10d = dist.distributed_c10d
        handles = handles_of(None, c10d._get_reconfigure_handle(), tmp_path, world)
        c10d._reconfigure(uuid=7, handles=handles).wait()
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == world

    run(body, 2)


@pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "register_abort_hook"), reason="torch has no abort hooks yet"
)
def test_an_abort_hook_is_called_once_before_the_group_is_given_up() -> None:
    def body(rank: int, world: int) -> None:
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        called: list[int] = []
        backend.register_abort_hook(1, lambda: called.append(1))
        backend.register_abort_hook(2, lambda: called.append(2))
        backend.unregister_abort_hook(2)
        if rank == 0:
            dist.group.WORLD.abort()
            dist.group.WORLD.abort()
            assert called == [1]

    run(body, 2)
