"""The checkpoints that bench_load loads, and whether they are in the page cache."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

MIB = 1 << 20


def make_state_dict(size: int, dim: int) -> dict[str, Any]:
    """Random float32 and bfloat16 tensors of a transformer's shapes; small dim: many of them."""
    import torch

    generator = torch.Generator().manual_seed(7)
    tensors: dict[str, Any] = {}
    left = size

    def add(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        nonlocal left
        count = torch.Size(shape).numel() * dtype.itemsize
        words = torch.empty(-(-count // 8), dtype=torch.int64).random_(generator=generator)
        tensors[name] = words.view(torch.uint8)[:count].clone().view(dtype).reshape(shape)
        left -= count

    add("model.embed.weight", (max(64, size // 16 // dim), dim), torch.bfloat16)
    layer = 0
    while left > 0:
        for name, shape in (("q", (dim, dim)), ("k", (dim // 4, dim)), ("v", (dim // 4, dim)),
                            ("o", (dim, dim)), ("up", (3 * dim, dim)), ("down", (dim, 3 * dim)),
                            ("norm1", (dim,)), ("norm2", (dim,))):  # fmt: skip
            dtype = torch.float32 if name.startswith("norm") else torch.bfloat16
            add(f"model.layers.{layer}.{name}.weight", shape, dtype)
        add(f"model.layers.{layer}.gate.weight", (dim, dim), torch.float32)
        layer += 1
    return tensors


def make_files(folder: pathlib.Path, size: int, dim: int) -> None:
    """The same tensors as torch zip, safetensors and DCP, written to disk."""
    import warnings

    import safetensors.torch
    import torch
    import torch.distributed.checkpoint as dcp

    tensors = make_state_dict(size, dim)
    torch.save(tensors, folder / "x.pt")
    safetensors.torch.save_file(tensors, folder / "x.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(dict(tensors), checkpoint_id=str(folder / "dcp"), no_dist=True)
    for path in files_under(folder):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    count = sum(t.numel() * t.element_size() for t in tensors.values())
    (folder / "made.json").write_text(json.dumps({"bytes": count, "tensors": len(tensors)}))


def files_under(path: pathlib.Path) -> list[pathlib.Path]:
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def set_cache(path: pathlib.Path, *, warm: bool) -> None:
    """Put these files, and no others, into the page cache or out of it."""
    for file in files_under(path):
        descriptor = os.open(file, os.O_RDONLY)
        if warm:
            room = bytearray(4 * MIB)
            while os.readv(descriptor, [room]):
                pass
        else:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
