"""The index of one file: what is in it, checked, before any data is read."""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from solo import _C
from solo._load import diagnose
from solo._load.errors import CheckpointError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from solo._load.source import Source


class StorageRow(NamedTuple):
    """A run of bytes in the file that tensors share."""

    key: str
    dtype: int
    bytes: int
    offset: int
    packed: int
    crc: int
    location: str


class TensorRow(NamedTuple):
    """A view of a storage; ``first``, sizes and strides count elements."""

    storage: int
    dtype: int
    first: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: int
    contiguous: int
    metadata: bool


class NameRow(NamedTuple):
    """A place in the object where a tensor is; the last key begins at ``key_at``."""

    name: str
    key_at: int
    tensor: int


@dataclass
class Options:
    """What a caller allows beyond the usual; see ``solo.load``."""

    allowed: tuple[str, ...] = ()
    placeholders: bool = False
    allow_trailing: bool = False
    allow_expanded: bool = False
    limits: dict[str, int] = field(default_factory=dict)


@dataclass
class Table:
    """One file: its source, its checked index, and the rows of it as Python has them."""

    source: Source
    index: Any  # _C.Checkpoint; None of a directory of chunks
    info: dict[str, Any]
    storages: list[StorageRow]
    tensors: list[TensorRow]
    names: list[NameRow]
    base: int = 0
    chunks: Any = None  # of a DCP directory: dcp.Chunks, which read its storages

    @property
    def mappable(self) -> bool:
        """Whether its data can be left in the file and read when it is touched."""
        return self.chunks is None and not self.source.network and hasattr(self.source, "file")

    @property
    def kind(self) -> str:
        return str(self.info["kind"])

    @property
    def has_object(self) -> bool:
        """Whether the file holds an object round the tensors (a pickle), or names alone."""
        return self.kind != "safetensors"

    def names_of_storage(self, storage: int) -> list[str]:
        return [n.name for n in self.names if self.tensors[n.tensor].storage == storage]

    def used_bytes(self, rows: Iterable[int] | None = None) -> int:
        """Bytes of the storages behind these tensors, each counted once; None: of all."""
        if rows is None:
            return sum(s.bytes for s in self.storages)
        return sum(self.storages[s].bytes for s in {self.tensors[t].storage for t in rows})


@functools.cache
def dtypes() -> tuple[torch.dtype | None, ...]:
    """torch's dtype by number; None where this torch has none."""
    return tuple(getattr(torch, name, None) for name, _ in _C.dtype_names())


@functools.cache
def dtype_names() -> tuple[str, ...]:
    return tuple(name for name, _ in _C.dtype_names())


@functools.cache
def dtype_bits() -> tuple[int, ...]:
    return tuple(bits for _, bits in _C.dtype_names())


def torch_dtype(number: int, tensor: str) -> torch.dtype:
    dtype = dtypes()[number]
    if dtype is None:
        name = dtype_names()[number]
        raise CheckpointError(
            Problem(
                "dtype",
                f"tensor {tensor!r} has dtype {name}, which torch {torch.__version__} lacks",
                record=tensor,
            ),
            fix="pip install -U torch, or leave the tensor out with only=",
        )
    return dtype


def open_table(source: Source, options: Options, *, base: int = 0, size: int = 0) -> Table:
    """Index a file and raise everything that is wrong with it at once."""
    index = source.checkpoint(options, base, size)
    info = index.info()
    if index.fault_count():
        raise diagnose.explain(source, index, info)
    table = Table(
        source=source,
        index=index,
        info=info,
        storages=index.storages(StorageRow),
        tensors=index.tensors(TensorRow),
        names=index.names(NameRow),
        base=base,
    )
    _add_tied(table)
    return table


def refused_names(table: Table, options: Options) -> list[str]:
    """What the file names that is no data, for which ``solo.load`` would refuse it."""
    if table.chunks is not None or not table.has_object:
        return []
    strict = dataclasses.replace(options, placeholders=False)
    index = table.source.checkpoint(strict, table.base, 0)
    return sorted({text for code, _, text in index.faults() if code == "unsafe"})


def _add_tied(table: Table) -> None:
    """Names that a safetensors file of ours keeps as aliases of another."""
    from solo._load.objects import TIED, note_of

    if table.kind != "safetensors" or TIED not in table.index.note():
        return
    rows = {name.name: name.tensor for name in table.names}
    for alias, name in json.loads(note_of(table).get(TIED, "{}")).items():
        if name in rows and alias not in rows:
            table.names.append(NameRow(str(alias), 0, rows[name]))
