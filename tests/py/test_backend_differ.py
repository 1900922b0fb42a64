"""Ranks that call different things: both are told at once, with what each called."""

from __future__ import annotations

import os
import pathlib
import time

import pytest
import torch
import torch.distributed as dist
from ranks import run
from test_backend_faults import HOSTS, fails


@HOSTS
def test_two_different_collectives_are_told_to_both(hosts: int) -> None:
    def body(rank: int, world: int) -> None:
        tensor = torch.ones(1000)
        if rank == 0:
            fails(lambda: dist.all_reduce(tensor), "all_reduce", "all_gather", "rank 0", "rank 1")
        else:
            gathered = [torch.empty(1000), torch.empty(1000)]
            call = lambda: dist.all_gather(gathered, tensor)  # noqa: E731
            fails(call, "all_reduce", "all_gather", "rank 0", "rank 1")

    run(body, 2, timeout_s=60, hosts=hosts)


@HOSTS
@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        (torch.ones(1000), torch.ones(2000), ("1000", "2000")),
        (torch.ones(1000), torch.ones(1000).double(), ("float32", "float64")),
        (torch.ones(10), torch.ones(1000000), ("10", "1000000")),
    ],
    ids=["count", "dtype", "size"],
)
def test_two_different_tensors_are_told_to_both(
    hosts: int, mine: torch.Tensor, theirs: torch.Tensor, words: tuple[str, str]
) -> None:
    def body(rank: int, world: int) -> None:
        tensor = mine if rank == 0 else theirs
        fails(lambda: dist.all_reduce(tensor), "rank 0", "rank 1", *words)

    run(body, 2, timeout_s=60, hosts=hosts)


@HOSTS
def test_wrong_lengths_in_all_to_all_are_told(hosts: int) -> None:
    def body(rank: int, world: int) -> None:
        inputs = [torch.ones(4), torch.ones(4)]
        outputs = (
            [torch.empty(4), torch.empty(4)] if rank == 0 else [torch.empty(5), torch.empty(4)]
        )
        fails(lambda: dist.all_to_all(outputs, inputs), "all_to_all", "4", "5")

    run(body, 2, timeout_s=60, hosts=hosts)


ROOTED = {
    "broadcast": lambda tensor: dist.broadcast(tensor, 0),
    "reduce": lambda tensor: dist.reduce(tensor, 0),
    "gather": lambda tensor: dist.gather(
        tensor, [torch.empty(10)] * 2 if dist.get_rank() == 0 else None
    ),
    "scatter": lambda tensor: dist.scatter(
        tensor, [torch.ones(10)] * 2 if dist.get_rank() == 0 else None
    ),
}


@pytest.mark.parametrize("wrong", [0, 1], ids=["root-differs", "other-differs"])
@pytest.mark.parametrize("name", ROOTED)
def test_a_call_with_a_root_that_meets_another_is_told_to_both_at_once(
    name: str, wrong: int
) -> None:
    def body(rank: int, world: int) -> None:
        tensor = torch.ones(10)
        call = (lambda: dist.all_reduce(tensor)) if rank == wrong else lambda: ROOTED[name](tensor)
        fails(call, "rank 0", "rank 1", name, "all_reduce")

    run(body, 2, timeout_s=60)


def wait_until_ended(process: pathlib.Path) -> None:
    """Until another rank has written its number there and is gone; at most 30 s."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if process.exists() and (text := process.read_text()):
            status = pathlib.Path(f"/proc/{text}/stat")
            if not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return
        time.sleep(0.01)
    raise AssertionError("the other rank did not end")


NEXT = {
    "barrier": dist.barrier,
    "same": lambda: dist.broadcast(torch.ones(10), 0),
    "message": lambda: dist.send(torch.ones(10), 1),
    "monitored": lambda: dist.monitored_barrier(),
    "destroy": dist.destroy_process_group,
}


@pytest.mark.parametrize("following", NEXT)
def test_between_hosts_who_only_sent_is_told_with_its_next_call(
    following: str, tmp_path: pathlib.Path
) -> None:
    process, sent = tmp_path / "process", tmp_path / "sent"

    def body(rank: int, world: int) -> None:
        words = ("rank 0 call", "rank 1 call", "broadcast", "all_reduce")
        dist.barrier()
        if rank == 1:
            while not sent.exists():
                time.sleep(0.01)
            fails(lambda: dist.all_reduce(torch.ones(10)), *words)
            process.write_text(str(os.getpid()))
            return  # and ends: its last words are there all the same
        dist.broadcast(torch.ones(10), 0)
        sent.touch()
        wait_until_ended(process)
        fails(NEXT[following], *words)
        dist.destroy_process_group()

    run(body, 2, timeout_s=60, hosts=2)


@HOSTS
def test_a_sparse_sum_that_meets_a_dense_one_is_told_to_both(hosts: int) -> None:
    def body(rank: int, world: int) -> None:
        tensor = torch.ones(10) if rank else torch.eye(10).to_sparse()
        fails(lambda: dist.all_reduce(tensor), "rank 0", "rank 1", "all_gather", "all_reduce")

    run(body, 2, timeout_s=60, hosts=hosts)
