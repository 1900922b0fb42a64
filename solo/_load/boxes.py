"""Parts of tensors: what a rank of a distributed tensor needs of a file, and no more of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from solo._load.errors import fail

RUNS_MAX = 1 << 16  # of one tensor; more of them are slower than reading it whole

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """A block of a tensor: where it begins, and its sizes."""

    offsets: Sizes
    sizes: Sizes

    def common(self, other: Box) -> Box | None:
        """What two blocks of one tensor share."""
        begin = tuple(map(max, self.offsets, other.offsets))
        ends = map(
            min, map(sum, zip(self.offsets, self.sizes, strict=True)),
            map(sum, zip(other.offsets, other.sizes, strict=True)),
        )  # fmt: skip
        sizes = tuple(end - at for at, end in zip(begin, ends, strict=True))
        return Box(begin, sizes) if all(size > 0 for size in sizes) else None

    def runs(self, source: Box, target: Box) -> Iterator[tuple[int, int, int]]:
        """This block, which both hold, in pieces that are contiguous in both: the element of the
        source and of the target where each begins, and its elements."""
        inner = len(self.sizes)  # axes from here on are whole in both
        while inner and self.sizes[inner - 1] == source.sizes[inner - 1] == target.sizes[inner - 1]:
            inner -= 1
        axis = max(0, inner - 1)  # the innermost that is cut: runs go along it
        count = math.prod(self.sizes[axis:])
        steps = (_strides(source.sizes), _strides(target.sizes))
        first = [
            sum((o - b) * s for o, b, s in zip(self.offsets, box.offsets, step, strict=True))
            for box, step in zip((source, target), steps, strict=True)
        ]
        for at in itertools.product(*(range(size) for size in self.sizes[:axis])):
            yield (
                first[0] + sum(i * s for i, s in zip(at, steps[0], strict=False)),
                first[1] + sum(i * s for i, s in zip(at, steps[1], strict=False)),
                count,
            )

    def run_count(self, source: Box, target: Box) -> int:
        inner = len(self.sizes)
        while inner and self.sizes[inner - 1] == source.sizes[inner - 1] == target.sizes[inner - 1]:
            inner -= 1
        return math.prod(self.sizes[: max(0, inner - 1)])

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The block of a whole tensor."""
        for axis, (offset, size) in enumerate(zip(self.offsets, self.sizes, strict=True)):
            tensor = tensor.narrow(axis, offset, size)
        return tensor


def whole(sizes: Sequence[int]) -> Box:
    return Box((0,) * len(sizes), tuple(sizes))


def _strides(sizes: Sizes) -> list[int]:
    strides, stride = [], 1
    for size in reversed(sizes):
        strides.append(stride)
        stride *= size
    return strides[::-1]


def is_distributed(tensor: torch.Tensor) -> bool:
    """Without importing what most programs do not use."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "to_local")


def of_rank(tensor: Any, name: str) -> Box:
    """Which block of a distributed tensor this rank holds."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if any(placement.is_partial() for placement in tensor.placements):
        raise fail(
            "unsupported",
            f"{name!r} is a distributed tensor of partial sums, which a file cannot fill",
            record=name,
        )
    with torch.device("cpu"):  # torch computes with tensors here, wherever the script makes its own
        sizes, offsets = compute_local_shape_and_global_offset(
            tensor.shape, tensor.device_mesh, tensor.placements
        )
    return Box(tuple(offsets), tuple(sizes))


def local_memory(tensor: Any) -> torch.Tensor:
    """This rank's part; of a tensor on ``meta``, new memory on the mesh's device."""
    local: torch.Tensor = tensor.to_local()
    if local.is_meta:
        local = torch.empty_like(local, device=tensor.device_mesh.device_type)
    return local.detach()


def made_of(local: torch.Tensor, like: Any) -> torch.Tensor:
    """A distributed tensor of this rank's part."""
    from torch.distributed.tensor import DTensor

    made: torch.Tensor = DTensor.from_local(
        local,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
    return made
