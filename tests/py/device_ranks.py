"""The fake device and the fake NCCL of tests/gpu, built once, and ranks that use them."""

from __future__ import annotations

import os
import pathlib
import subprocess
import types
from collections.abc import Callable
from typing import Any

import ranks
import torch
import torch.distributed as dist
from torch.utils import cpp_extension

SOURCES = pathlib.Path(__file__).parents[1] / "gpu"
BUILD = pathlib.Path(__file__).parents[2] / "build" / "fake"


def build(source: str, library: str, *command: str) -> str:
    """Compile one fake, unless the library is newer than its sources."""
    target = BUILD / library
    newest = max(path.stat().st_mtime for path in SOURCES.glob("fake_*"))
    if not target.exists() or target.stat().st_mtime < newest:
        BUILD.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [command[0], "-shared", "-fPIC", "-o", part, SOURCES / source, *command[1:]], check=True
        )
        part.rename(target)
    return str(target)


def device_library() -> str:
    version = torch.__version__.split("+")[0]
    includes = [f"-isystem{path}" for path in cpp_extension.include_paths()]
    libraries = [f"-L{path}" for path in cpp_extension.library_paths()]
    libraries += ["-Wl,--no-as-needed", "-lc10", "-ltorch_cpu"]
    name = f"fake_device-{version}.so"
    return build("fake_device.cpp", name, "g++", "-std=c++20", "-O1", *includes, *libraries)


def nccl_library() -> str:
    return build("fake_nccl.c", "fake_nccl.so", "gcc", "-std=c11", "-O2", "-pthread")


def driver_library() -> str:
    name = "-Wl,-soname,libcuda.so.1"
    return build("fake_cuda.c", "fake_cuda.so", "gcc", "-std=c11", "-O2", name)


def run(
    body: Callable[[int, int], Any],
    world: int,
    *,
    nccl: bool = False,
    one_device: bool = False,
    **options: Any,
) -> list[Any]:
    """As ``ranks.run``; each rank has a fake device of its own, served by its "solo" group."""
    device, library = device_library(), nccl_library() if nccl else "0"

    def on_device(rank: int, world: int) -> Any:
        os.environ["SOLO_NCCL"] = library
        torch.ops.load_library(device)
        module = types.ModuleType("torch.privateuseone")
        module._lazy_init = lambda: None  # type: ignore[attr-defined]
        torch._register_device_module("privateuseone", module)
        torch.ops.fake.late(300)
        index = 0 if one_device else rank
        torch.zeros(1, device=f"privateuseone:{index}")
        group = dist.group.WORLD
        backend = group._get_backend(torch.device("cpu"))
        group._register_backend(
            torch.device("privateuseone"), dist.ProcessGroup.BackendType.CUSTOM, backend
        )
        del group, backend  # else no body could give them up
        global _index
        _index = index
        result = body(rank, world)
        assert torch.ops.fake.device_syncs() == 0
        return result

    return ranks.run(on_device, world, **options)


_index = 0


def here() -> torch.device:
    """This rank's device."""
    return torch.device(f"privateuseone:{_index}")


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(here())


def late(tensor: torch.Tensor, value: float, after_us: int = 20000) -> None:
    """Fill a tensor on the current stream, as late as a long kernel does."""
    torch.ops.fake.fill(tensor, value, after_us)
