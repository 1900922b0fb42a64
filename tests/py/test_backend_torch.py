"""What people build on process groups works on "solo": DDP, FSDP, DTensor, ZeRO, DCP, compile."""

from __future__ import annotations

import copy
import os
import pathlib
import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from ranks import run
from torch.nn.parallel import DistributedDataParallel

warnings.filterwarnings("ignore", category=FutureWarning)


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 5)
    )


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 20, generator=generator), torch.randn(8, 5, generator=generator)


def train(net: nn.Module, rank: int, steps: int = 5) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(inputs), targets).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in net.parameters()]


@pytest.mark.parametrize("hosts", [1, 2], ids=["shm", "tcp"])
@pytest.mark.parametrize("options", [{}, {"static_graph": True}, {"bucket_cap_mb": 0.001}])
def test_ddp_trains_as_on_gloo(hosts: int, options: dict[str, object]) -> None:
    def body(rank: int, world: int) -> list[list[float]]:
        trained = train(DistributedDataParallel(model(), **options), rank)
        return [parameter.flatten().tolist() for parameter in trained]

    ours = run(body, 2, hosts=hosts)
    theirs = run(body, 2, backend="gloo")
    for mine, other, gloo in zip(ours[0], ours[1], theirs[0], strict=True):
        assert mine == other
        assert torch.allclose(torch.tensor(mine), torch.tensor(gloo), rtol=1e-5, atol=1e-6)


def test_ddp_with_uneven_inputs_and_unused_parameters() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(20, 5), nn.Linear(20, 5)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.used(inputs)

    def body(rank: int, world: int) -> None:
        net = DistributedDataParallel(Unused(), find_unused_parameters=True)
        train(net, rank, 2)
        net = DistributedDataParallel(nn.Linear(20, 5))
        with net.join():
            for step in range(3 + 2 * rank):
                net(batch(rank, step)[0]).sum().backward()

    run(body, 2)


def test_ddp_compresses_gradients_in_a_hook() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def body(rank: int, world: int) -> None:
        net = DistributedDataParallel(model())
        net.register_comm_hook(None, default_hooks.fp16_compress_hook)
        train(net, rank, 2)
        net = DistributedDataParallel(model())
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)  # waits for calls in callbacks
        train(net, rank, 4)

    run(body, 2)


def test_fsdp2_and_fsdp_train_as_ddp_does() -> None:
    def body(rank: int, world: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

        def plain() -> nn.Module:
            torch.manual_seed(3)
            return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))

        want = train(DistributedDataParallel(plain()), rank)
        mesh = init_device_mesh("cpu", (world,))
        net = plain()
        for layer in net:
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
        train(net, rank)
        got = [parameter.full_tensor() for parameter in net.parameters()]
        for mine, other in zip(got, want, strict=True):
            assert torch.allclose(mine, other, rtol=1e-4, atol=1e-6)
        old = FullyShardedDataParallel(plain(), device_id=torch.device("cpu"))
        train(old, rank)
        with FullyShardedDataParallel.summon_full_params(old):
            for mine, other in zip(old.parameters(), want, strict=True):
                assert torch.allclose(mine, other, rtol=1e-4, atol=1e-6)

    run(body, 2)


def test_dtensors_are_redistributed_over_a_mesh_of_two_dimensions() -> None:
    def body(rank: int, world: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
        whole = torch.arange(64.0).reshape(8, 8)
        tensor = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
        assert torch.equal(tensor.redistribute(mesh, [Shard(1), Shard(0)]).full_tensor(), whole)
        product = torch.matmul(tensor, tensor.redistribute(mesh, [Replicate(), Shard(0)]))
        assert torch.allclose(product.full_tensor(), whole @ whole)
        assert isinstance(product.placements[1], (Partial, Replicate, Shard))
        assert tensor.sum().full_tensor() == whole.sum()

    run(body, 4)


def test_functional_collectives_and_compile() -> None:
    def body(rank: int, world: int) -> None:
        import torch.distributed._functional_collectives as functional

        group = dist.group.WORLD

        def step(tensor: torch.Tensor) -> torch.Tensor:
            total = functional.all_reduce(tensor * 2, "sum", group)
            gathered = functional.all_gather_tensor(total, 0, group)
            return functional.reduce_scatter_tensor(gathered, "avg", 0, group)

        want = torch.full((4,), 2.0 * sum(range(1, world + 1)))
        tensor = torch.full((4,), rank + 1.0)
        assert torch.equal(step(tensor), want)
        compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(tensor), want)

    run(body, 2, timeout_s=60)


def test_zero_redundancy_optimizer_and_checkpoints(tmp_path: pathlib.Path) -> None:
    def body(rank: int, world: int) -> None:
        import torch.distributed.checkpoint as checkpoint
        from torch.distributed.optim import ZeroRedundancyOptimizer

        net = DistributedDataParallel(model())
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
        inputs, targets = batch(rank, 0)
        nn.functional.mse_loss(net(inputs), targets).backward()
        optimizer.step()
        optimizer.consolidate_state_dict()
        saved = copy.deepcopy(net.state_dict())
        checkpoint.save({"model": net.state_dict()}, checkpoint_id=tmp_path / "checkpoint")
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.zero_()
        state = {"model": net.state_dict()}
        checkpoint.load(state, checkpoint_id=tmp_path / "checkpoint")
        net.load_state_dict(state["model"])
        for name, parameter in net.named_parameters():
            assert torch.equal(parameter, saved[name]), name

    run(body, 2)


def test_the_debug_wrapper_of_torch() -> None:
    def body(rank: int, world: int) -> None:
        train(DistributedDataParallel(model()), rank, 2)
        gathered = [torch.empty(3) for _ in range(world)]
        dist.all_gather(gathered, torch.ones(3))
        dist.barrier()

    os.environ.update(TORCH_DISTRIBUTED_DEBUG="DETAIL", GLOO_SOCKET_IFNAME="lo")
    try:
        dist.set_debug_level_from_env()
        run(body, 2)
    finally:
        del os.environ["TORCH_DISTRIBUTED_DEBUG"], os.environ["GLOO_SOCKET_IFNAME"]
        dist.set_debug_level_from_env()


def test_health_options_hooks_and_titles() -> None:
    def body(rank: int, world: int) -> None:
        group = dist.group.WORLD
        backend = group._get_backend(torch.device("cpu"))
        assert backend.name() == "solo"
        done: list[str] = []
        with torch.profiler.profile() as profile:
            dist.all_reduce(torch.ones(3))
            dist.all_reduce(torch.ones(3), async_op=True).wait()
            dist.barrier()
        events = [event.name for event in profile.events()]
        assert events.count("solo:all_reduce") == 2
        assert "solo:barrier" in events
        work = dist.all_reduce(torch.ones(3), async_op=True)
        work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.wait()
        assert not done
        sub = dist.new_group([0, 1], group_desc="pair")
        assert dist.get_backend(sub) == "solo"
        halves = group.split_group([0, 1]) if hasattr(group, "split_group") else None
        assert halves is None or halves.size() == 2

    run(body, 2)


SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("solo")
tensor = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(tensor)
assert tensor.tolist() == [3, 3, 3]
print("fine", flush=True)
"""


def test_torchrun_needs_no_import(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)  # no destroy_process_group either
    flags = ["--nproc_per_node=2", "--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:0"]
    command = [sys.executable, "-m", "torch.distributed.run", *flags, script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("fine") == 2


def test_an_adapter_of_another_torch_is_refused_in_one_sentence() -> None:
    from solo import backend

    own = backend._adapter_path().read_bytes()
    backend._check_torch(own, torch.__version__)
    with pytest.raises(RuntimeError, match=r"built for torch 2\.99, this is torch 2\.13: install"):
        backend._check_torch(b"...solo: built for torch 2.99\0...", "2.13.0+cpu")


def test_the_private_names_of_torch_that_the_backend_rests_on() -> None:
    assert callable(dist.ProcessGroup.boxed)
    assert callable(dist.ProcessGroup._get_backend)
    assert "SOLO" in dist.Backend._plugins
    store = dist.HashStore()
    assert dist.ProcessGroup(store, 0, 1).size() == 1
    assert callable(dist.distributed_c10d._rank_not_in_group)
