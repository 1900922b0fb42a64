"""What needs a GPU: python -m pytest tests/gpu, on a machine with one; less than five minutes.

Two ranks share the GPU, so what they do is staged; NCCL is used by a group of one rank.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "py"))
from ranks import run

# Not torch.cuda.is_available(): ranks are forks of this process, which must not touch the GPU.
pytestmark = pytest.mark.skipif(
    torch.version.cuda is None or not pathlib.Path("/dev/nvidiactl").exists(),
    reason="needs a GPU and a torch built with CUDA",
)
COUNTS = [0, 1, 1000, 1048576, 1048577, 30000001]


def values(rank: int, count: int) -> torch.Tensor:
    return ((torch.arange(count) * 7 + rank * 3) % 5).float()


def total(count: int, world: int) -> torch.Tensor:
    return sum((values(i, count) for i in range(world)), torch.zeros(count))


@pytest.mark.parametrize(("world", "nccl"), [(1, True), (1, False), (2, False)],
                         ids=["nccl", "alone", "staged"])  # fmt: skip
def test_collectives_of_every_size(world: int, nccl: bool) -> None:
    def body(rank: int, world: int) -> None:
        os.environ["SOLO_NCCL"] = "" if nccl else "0"
        for count in COUNTS:
            tensor = values(rank, count).cuda()
            dist.all_reduce(tensor)
            assert torch.equal(tensor.cpu(), total(count, world)), count
            tensor = values(rank, count).cuda()
            dist.broadcast(tensor, world - 1)
            assert torch.equal(tensor.cpu(), values(world - 1, count))
            out = [torch.empty(count, device="cuda") for _ in range(world)]
            dist.all_gather(out, values(rank, count).cuda())
            assert all(torch.equal(out[i].cpu(), values(i, count)) for i in range(world))
            whole = values(rank, world * count).cuda()
            share = torch.empty(count, device="cuda")
            dist.reduce_scatter_tensor(share, whole)
            want = total(world * count, world)[rank * count : (rank + 1) * count]
            assert torch.equal(share.cpu(), want)
            dist.all_to_all(out, [values(10 * rank + i, count).cuda() for i in range(world)])
            assert all(
                torch.equal(out[i].cpu(), values(10 * i + rank, count)) for i in range(world)
            )
        assert bool(torch.ops.solo.nccl_calls(dist.group.WORLD.boxed())) == nccl

    run(body, world)


@pytest.mark.parametrize("world", [1, 2])
def test_streams_are_waited_for_and_the_device_is_not(world: int) -> None:
    def body(rank: int, world: int) -> None:
        large = torch.randn(4096, 4096, device="cuda")
        dist.all_reduce(torch.ones(1, device="cuda"))
        side = torch.cuda.Stream()
        for turn in range(5):
            with torch.cuda.stream(side):
                for _ in range(20):
                    large = large @ large * 1e-3  # a queue in front of what is reduced
                tensor = torch.full((5000000,), float(rank + turn), device="cuda")
                work = dist.all_reduce(tensor, async_op=True)
            assert work is not None
            with torch.cuda.stream(side):
                work.wait()
                got = tensor.sum().item() / tensor.numel()
            assert got == sum(range(world)) + turn * world

    run(body, world)


def test_messages_between_the_gpu_and_the_cpu() -> None:
    def body(rank: int, world: int) -> None:
        for count in COUNTS:
            if rank == 0:
                dist.send(values(3, count).cuda(), 1)
                dist.send(values(4, count).cuda(), 1)
            else:
                got = torch.empty(count, device="cuda")
                dist.recv(got, 0)
                plain = torch.empty(count)
                dist.recv(plain, 0)
                assert torch.equal(got.cpu(), values(3, count))
                assert torch.equal(plain, values(4, count))

    run(body, 2)


def train(backend: str) -> list[Any]:
    def body(rank: int, world: int) -> list[list[float]]:
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(50, 500), nn.ReLU(), nn.Linear(500, 500), nn.Linear(500, 5))
        ddp = DistributedDataParallel(net.cuda(), bucket_cap_mb=1)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        for step in range(10):
            generator = torch.Generator().manual_seed(100 * step + rank)
            inputs = torch.randn(64, 50, generator=generator).cuda()
            optimizer.zero_grad()
            ddp(inputs).square().mean().backward()
            optimizer.step()
        return [parameter.flatten()[:50].tolist() for parameter in ddp.parameters()]

    return run(body, 2, backend=backend)


def test_ddp_trains_as_on_gloo() -> None:
    ours, theirs = train("solo"), train("gloo")
    assert ours[0] == ours[1]
    for mine, other in zip(ours[0], theirs[0], strict=True):
        assert torch.allclose(torch.tensor(mine), torch.tensor(other), rtol=1e-3, atol=1e-5)


def test_solo_for_the_cpu_beside_nccl_for_the_gpu() -> None:
    def body(rank: int, world: int) -> None:
        plain, device = torch.ones(5), torch.ones(5, device="cuda")
        dist.all_reduce(plain)
        dist.all_reduce(device)
        assert plain.tolist() == device.tolist() == [1] * 5

    run(body, 1, backend="cpu:solo,cuda:nccl")


def test_a_staged_all_reduce_beside_gloo() -> None:
    """Prints times; nothing is asserted of them."""

    def body(rank: int, world: int) -> list[float]:
        times = []
        for count in (1000, 1 << 20, 1 << 26):
            tensor = torch.ones(count, device="cuda")
            dist.all_reduce(tensor)
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(5):
                dist.all_reduce(tensor)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begun) / 5)
        return times

    for ours, theirs in zip(run(body, 2)[0], run(body, 2, backend="gloo")[0], strict=True):
        print(f"solo {ours * 1e3:.2f} ms, gloo {theirs * 1e3:.2f} ms: {theirs / ours:.1f} times")
