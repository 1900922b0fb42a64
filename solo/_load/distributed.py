"""Into distributed tensors: each rank reads the part that it holds, straight into it."""

from __future__ import annotations

from typing import Any

import torch

from solo._load import boxes, read
from solo._load.boxes import Box
from solo._load.place import CPU, Placement
from solo._load.read import How
from solo._load.table import Table, dtypes


def fill(tensor: torch.Tensor, name: str, table: Table, row: int, how: How) -> tuple[Any, bool]:
    """Fill this rank's part.

    Returns:
        The tensor (another one in the place of one on ``meta``), and whether the file's bytes
        went straight into it.
    """
    box = boxes.of_rank(tensor, name)
    local = boxes.local_memory(tensor)
    dtype = dtypes()[table.tensors[row].dtype]
    direct = local.device == CPU and local.is_contiguous() and local.dtype == dtype
    if local.numel():
        piece = local if direct else torch.empty(box.sizes, dtype=dtype, device=CPU)
        read_box(table, row, box, piece, how)
        if not direct:
            with torch.no_grad():
                local.copy_(piece)
    if not tensor.is_meta:
        return tensor, direct
    made = boxes.made_of(local, tensor)
    if isinstance(tensor, torch.nn.Parameter):
        made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made, direct


def read_box(table: Table, row: int, box: Box, piece: torch.Tensor, how: How) -> None:
    """A block of a tensor of the file into contiguous memory of the file's dtype."""
    if table.chunks is not None:
        table.chunks.read_box(row, box, piece, how)
        return
    tensor = table.tensors[row]
    storage = table.storages[tensor.storage]
    source = boxes.whole(tensor.sizes)
    plain = (
        tensor.contiguous
        and not tensor.metadata
        and storage.packed == storage.bytes
        and not table.info["big_endian"]
        and box.run_count(source, box) <= boxes.RUNS_MAX
    )
    if not plain:
        placed = Placement([CPU] * len(table.storages))
        cells = read.read_storages(table, placed, [tensor.storage], how)
        piece.copy_(box.of(read.make_tensors(table, cells, [row])[row]))
        return
    width = piece.element_size()
    reads = [
        (
            storage.offset + (tensor.first + at) * width,
            count * width,
            piece.data_ptr() + to * width,
            # checksums are of whole storages
            tensor.storage if count * width == storage.bytes else -1,
        )
        for at, to, count in box.runs(source, box)
    ]
    read.run(table, reads, how)
