"""Tensors that were left in their file, brought into memory of their own."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Any

import torch


def materialize(obj: Any) -> int:
    """Copy what is mapped from a file into private memory, in place; what is not stays as it is.

    Tensors that share memory go on sharing it. After this the file may be changed or removed.

    Args:
        obj: a module, a tensor, or dicts, lists and tuples of them.

    Returns:
        How many bytes were copied.
    """
    mapped = _FileMappings()
    copies: dict[int, torch.UntypedStorage] = {}
    copied = 0
    for tensor in _tensors(obj, set()):
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            continue
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in copies:
            if not storage.nbytes() or address not in mapped:
                continue
            copies[address] = storage.clone()  # type: ignore[no-untyped-call]
            copied += storage.nbytes()
        size, stride, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        own = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(
            copies[address], offset, size, stride
        )
        own = own.conj() if tensor.is_conj() else own  # views that read the same bytes otherwise
        tensor.data = torch._neg_view(own) if tensor.is_neg() else own
    return copied


def _tensors(obj: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    if id(obj) in seen:
        return
    seen.add(id(obj))
    if isinstance(obj, torch.Tensor):
        yield obj
    elif isinstance(obj, torch.nn.Module):
        yield from obj.parameters()
        yield from obj.buffers()
    elif isinstance(obj, dict):
        for value in obj.values():
            yield from _tensors(value, seen)
    elif isinstance(obj, (list, tuple)):
        for value in obj:
            yield from _tensors(value, seen)


class _FileMappings:
    """Addresses of this process that belong to files."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        with open("/proc/self/maps") as lines:
            for line in lines:
                words = line.split(maxsplit=5)
                if words[4] != "0":  # its inode
                    start, _, end = words[0].partition("-")
                    self.ranges.append((int(start, 16), int(end, 16)))

    def __contains__(self, address: int) -> bool:
        at = bisect.bisect_right(self.ranges, (address, 1 << 64)) - 1
        return at >= 0 and self.ranges[at][0] <= address < self.ranges[at][1]
