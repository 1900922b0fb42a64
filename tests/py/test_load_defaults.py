"""A script's default device and dtype are for what the script makes, not for what is loaded."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from load_files import packed, write
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import solo
import solo.load
from solo._load.stage import Ring

DATA = torch.arange(24, dtype=torch.float32).reshape(4, 6)
CPU = torch.device("cpu")


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return write(tmp_path, "x.pt", packed({"x": DATA, "turned": DATA.t(), "n": 3}))


@pytest.fixture
def defaults() -> Iterator[None]:
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)


@pytest.fixture
def group(tmp_path: pathlib.Path) -> Iterator[Any]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def is_data(tensor: torch.Tensor) -> bool:
    return tensor.device == CPU and tensor.tolist() == DATA.tolist()


@pytest.mark.parametrize("how", [{}, {"mode": "mmap"}, {"only": "x"}, {"device_map": "cpu"}])
def test_a_load_is_what_the_file_says(
    path: pathlib.Path, defaults: None, how: dict[str, Any]
) -> None:
    tensor = solo.load(path, **how)["x"]
    assert tensor.dtype == torch.float32 and is_data(tensor)


def test_mapped_tensors_are_brought_into_memory(path: pathlib.Path, defaults: None) -> None:
    loaded = solo.load(path, mode="mmap")
    assert solo.load.materialize(loaded) == DATA.nbytes
    assert is_data(loaded["x"]) and is_data(loaded["turned"].t())


@pytest.mark.parametrize("share", ["auto", "read", "broadcast"])
def test_ranks_that_load_together(
    path: pathlib.Path, group: Any, defaults: None, share: str
) -> None:
    assert is_data(solo.load(path, group=group, share=share)["x"])


def test_a_distributed_tensor_of_another_dtype(
    path: pathlib.Path, group: Any, defaults: None
) -> None:
    zeros = torch.zeros(DATA.shape, dtype=torch.bfloat16, device=CPU)
    target = distribute_tensor(zeros, init_device_mesh("cpu", (1,)), [Shard(0)])
    solo.load.load_into({"x": target}, path, strict=False)
    assert is_data(target.to_local())


def test_the_buffers_on_the_way_to_a_device_are_the_host_s(defaults: None) -> None:
    ring = Ring(8, CPU)
    assert [ring.next().device, ring.next().device] == [CPU, CPU]
