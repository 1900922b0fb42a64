"""To other devices: through a ring of two pinned buffers, one filled while one is copied.

Host memory stays at the ring's size, however large the checkpoint is, and only the device
that was asked for is touched.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from solo._load.read import Cell, How
    from solo._load.table import Table

RING_BYTES = 64 << 20  # of each of the two buffers


class Ring:
    """Two buffers that take turns; a turn waits until its last copy is done."""

    def __init__(self, size: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.buffers = [
            torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned) for _ in range(2)
        ]
        self.events: list[Any] = [None, None]
        self.stream: Any = torch.cuda.Stream(device) if pinned else None  # type: ignore[no-untyped-call]
        self.turn = 0

    def next(self) -> torch.Tensor:
        self.turn ^= 1
        if self.events[self.turn] is not None:
            self.events[self.turn].synchronize()
        return self.buffers[self.turn]

    def copy(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Start copying (target, part of the current buffer)."""
        if self.stream is None:
            for target, part in pairs:
                target.copy_(part)
            return
        with torch.cuda.stream(self.stream):
            for target, part in pairs:
                target.copy_(part, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self.events[self.turn] = event

    def finish(self) -> None:
        if self.stream is not None:
            self.stream.synchronize()


def unified(device: torch.device) -> bool:
    """Whether the device's memory is the host's: there the page cache would be a second copy."""
    if device.type != "cuda":
        return False
    return bool(getattr(torch.cuda.get_device_properties(device), "is_integrated", False))


def to_device(table: Table, rows: list[int], device: torch.device, how: How) -> dict[int, Cell]:
    """Read these storages to a device, in pieces that fit the ring."""
    from solo._load import read

    if unified(device):
        how = dataclasses.replace(how, direct="always")
    cells: dict[int, Cell] = {}
    targets: dict[int, torch.Tensor] = {}
    plain = []
    for row in sorted(rows, key=lambda r: table.storages[r].offset):
        storage = table.storages[row]
        target = torch.empty(storage.bytes, dtype=torch.uint8, device=device)
        targets[row] = target
        cells[row] = (target.untyped_storage(), -1)
        if storage.packed == storage.bytes and storage.bytes:
            plain.append(row)
        elif storage.bytes:
            target.copy_(torch.frombuffer(read._inflate(table, row), dtype=torch.uint8))
    size = min(RING_BYTES, max((table.storages[r].bytes for r in plain), default=1))
    size = max(size, min(RING_BYTES, sum(table.storages[r].bytes for r in plain) or 1))
    ring = Ring(size, device)
    for batch in _turns(table, plain, size):
        buffer = ring.next()
        at = 0
        reads, pairs = [], []
        for row, begin, count in batch:
            offset = table.storages[row].offset + begin
            reads.append((offset, count, buffer.data_ptr() + at, row))
            pairs.append((targets[row][begin : begin + count], buffer[at : at + count]))
            at += count
        read.run(table, reads, how)
        ring.copy(pairs)
    ring.finish()
    return cells


def _turns(table: Table, rows: list[int], size: int) -> list[list[tuple[int, int, int]]]:
    """(storage, begin, bytes) in groups that fill a buffer; large storages are cut."""
    turns: list[list[tuple[int, int, int]]] = [[]]
    left = size
    for row in rows:
        begin, total = 0, table.storages[row].bytes
        while begin < total:
            if left == 0 or (left < total - begin <= size):  # whole if it fits at all
                turns.append([])
                left = size
            count = min(left, total - begin)
            turns[-1].append((row, begin, count))
            begin += count
            left -= count
    return [turn for turn in turns if turn]
