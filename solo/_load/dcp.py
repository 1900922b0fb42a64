"""Directories of torch.distributed.checkpoint, each as one table like that of a file.

Each chunk of a tensor is a small torch archive of its own inside a ``.distcp`` file; here they
are put together. Reading, placing and checking is the business of the same code as for files.
"""

from __future__ import annotations

import ctypes
import os
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from solo import _C
from solo._load import optimizer, paths
from solo._load.boxes import RUNS_MAX, Box
from solo._load.dcp_metadata import Chunk, Item, read_metadata
from solo._load.errors import CheckpointError, Problem, fail, read_error
from solo._load.objects import Builder
from solo._load.place import CPU, Placement
from solo._load.read import How, make_tensors, read_storages
from solo._load.source import DIRECT, LocalSource, Read, Source
from solo._load.table import NameRow, Options, StorageRow, Table, TensorRow, dtypes, open_table
from solo.errors import SoloError

if TYPE_CHECKING:
    from collections.abc import Mapping

ALIGN = 64  # of each tensor in memory
TAIL_BYTES = 1024  # of a chunk: its archive's directory, with the checksums, lies in them


def is_dcp(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, ".metadata"))


def open_folder(folder: str, options: Options, extra: Mapping[str, Any]) -> Table:
    """The table of a directory; its storages are its tensors, one each."""
    items, planned = read_metadata(folder)
    chunks = Chunks(folder, items, planned, options, extra)
    storages, tensors, names = [], [], []
    numbers = {dtype: number for number, dtype in reversed(list(enumerate(dtypes())))}
    at = 0
    for row, item in enumerate(chunks.tensors):
        sizes = item.sizes or ()
        size = _bytes(item)
        dtype = numbers[item.dtype]
        storages.append(StorageRow(item.name, dtype, size, at, size, 0, "cpu"))
        tensors.append(TensorRow(row, dtype, 0, sizes, _strides(sizes), 0, 1, False))
        keys = planned.get(item.name) or (item.name,)
        names.append(NameRow(item.name, max(0, len(item.name) - len(str(keys[-1]))), row))
        at = (at + size + ALIGN - 1) // ALIGN * ALIGN
    source = chunks.source
    needed = sum(storage.bytes for storage in storages)
    if needed > source.size:
        raise fail(
            "truncated",
            f"its tensors have {needed} bytes, its files {source.size}",
            path=folder,
            fix="copy the directory again",
        )
    info = {
        "kind": "DCP",
        "big_endian": False,
        "crc_known": True,
        "version": 0,
        "protocol": 0,
        "alignment": 0,
        "identity": "",
    }
    return Table(source, None, info, storages, tensors, names, chunks=chunks)


def _bytes(item: Item) -> int:
    return torch.Size(item.sizes or ()).numel() * (item.dtype.itemsize if item.dtype else 1)


def _strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    strides, stride = [], 1
    for size in reversed(sizes):
        strides.append(stride)
        stride *= max(1, size)
    return tuple(reversed(strides))


class Folder(Source):
    """The directory as a source: it has a name and a size, and is read through its files."""

    def __init__(self, folder: str, files: set[str]) -> None:
        self.name = folder
        self.missing = [f for f in sorted(files) if not os.path.isfile(os.path.join(folder, f))]
        present = files - set(self.missing)
        self.size = sum(os.path.getsize(os.path.join(folder, file)) for file in present)

    def identity(self) -> dict[str, Any]:
        path = os.path.join(self.name, ".metadata")
        return {
            "path": self.name,
            "real_path": os.path.realpath(self.name),
            "bytes": self.size,
            "modified_ns": os.stat(path).st_mtime_ns,
        }


class Chunks:
    """Where the data of a directory's tensors is.

    Attributes:
        tensors: by row of the table.
        blobs: objects without a tensor, each a file of torch.save inside a file.
        source: what the table says it is read from.
    """

    def __init__(
        self,
        folder: str,
        items: dict[str, Item],
        planned: dict[str, Any],
        options: Options,
        extra: Mapping[str, Any],
    ) -> None:
        self.items = items
        self.tensors = [item for item in items.values() if item.sizes is not None]
        self.blobs = [item for item in items.values() if item.sizes is None]
        self.planned = planned
        self.options = options
        self.extra = extra
        self.source = Folder(folder, {c.file for item in items.values() for c in item.chunks})
        self._files: dict[str, LocalSource] = {}
        self._values: dict[str, Any] | None = None
        if self.source.missing:
            raise CheckpointError(
                [
                    Problem("missing", f"its file {name} is not there", record=name)
                    for name in self.source.missing
                ],
                path=folder,
                fix="copy the directory again, with the files of all ranks",
            )

    def file(self, name: str) -> LocalSource:
        if name not in self._files:
            source = paths.open_local(os.path.join(self.source.name, name))
            assert isinstance(source, LocalSource)
            self._files[name] = source
        return self._files[name]

    def object(self, values: Mapping[str, Any]) -> Any:
        """The object as it was saved, from its tensors by name."""
        everything = {**self._blob_values(), **values}
        return _nest({name: everything[name] for name in self.items}, self.planned)

    def owners(self) -> dict[str, str]:
        """Names of optimizer tensors to their parameters; see optimizer.py."""
        if not any(".state." in item.name for item in self.tensors):
            return {}
        leaves = {
            i.name: optimizer.Leaf(
                i.name, i.sizes or (), True, i.dtype is not None and i.dtype.is_floating_point
            )
            for i in self.tensors
        }
        return optimizer.owners(self.object(leaves))

    def metadata(self) -> Iterator[bytes]:
        """What tells this directory from another: the metadata, and of every chunk the end,
        where the writer's checksums are."""
        source = paths.open_local(os.path.join(self.source.name, ".metadata"))
        yield source.read(0, source.size)
        for item in self.items.values():
            for chunk in item.chunks:
                file = self.file(chunk.file)
                end = min(chunk.offset + chunk.length, file.size)
                start = max(chunk.offset, end - TAIL_BYTES)
                yield file.read(start, max(0, end - start))

    # ---- data ----

    def read_to(self, targets: list[tuple[int, int]], how: How) -> None:
        """Read whole tensors, (row, address) each, with as few reads as the files allow."""
        reads: dict[str, list[tuple[Read, int, str]]] = {}
        blocks: list[tuple[int, Item, Chunk]] = []
        for row, address in targets:
            item = self.tensors[row]
            width = item.dtype.itemsize if item.dtype else 1
            for chunk in item.chunks:
                if not torch.Size(chunk.sizes).numel():
                    continue
                first = _inside(item, chunk)
                if first is None:
                    blocks.append((address, item, chunk))
                    continue
                offset, size, crc = self._open_chunk(item, chunk)
                read = (offset, size, address + first * width, -1)
                reads.setdefault(chunk.file, []).append((read, crc, item.name))
        for name, wanted in reads.items():
            self._run(self.file(name), wanted, how)
        for address, item, chunk in blocks:
            view = _tensor_at(address, item)
            for axis, (offset, count) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
                view = view.narrow(axis, offset, count)
            view.copy_(self._read_archive(chunk, how))

    def read_box(self, row: int, box: Box, piece: torch.Tensor, how: How) -> None:
        """A block of a tensor, from those chunks alone that have a part of it."""
        item = self.tensors[row]
        width = piece.element_size()
        reads: dict[str, list[tuple[Read, int, str]]] = {}
        for chunk in item.chunks:
            source = Box(chunk.offsets, chunk.sizes)
            common = source.common(box)
            if common is None:
                continue
            if common.run_count(source, box) > RUNS_MAX:
                part = Box(_minus(common.offsets, chunk.offsets), common.sizes)
                target = Box(_minus(common.offsets, box.offsets), common.sizes)
                target.of(piece).copy_(part.of(self._read_archive(chunk, how)))
                continue
            offset, size, crc = self._open_chunk(item, chunk)
            for at, to, count in common.runs(source, box):
                read = (offset + at * width, count * width, piece.data_ptr() + to * width, -1)
                known = crc if count * width == size else 0  # of the whole chunk
                reads.setdefault(chunk.file, []).append((read, known, item.name))
        for name, wanted in reads.items():
            self._run(self.file(name), wanted, how)

    def _open_chunk(self, item: Item, chunk: Chunk) -> tuple[int, int, int]:
        """Offset, bytes and checksum of a chunk's data: the one storage of an archive that must
        be exactly what the metadata says."""
        source = self.file(chunk.file)
        if chunk.offset + chunk.length > source.size:
            raise fail(
                "truncated",
                f"it ends before {item.name!r} does",
                path=source.name,
                fix="copy the directory again",
            )
        found = _C.chunk(source.file, chunk.offset, chunk.length)
        if isinstance(found, tuple):
            offset, size, dtype, sizes, crc = found
            if sizes == chunk.sizes and dtypes()[dtype] == item.dtype:
                return offset, size, crc
            found = []
        code, _, text = found[0] if found else ("mismatch", 0, "it is not what the metadata says")
        raise CheckpointError(
            Problem(code, f"the chunk of {item.name!r}: {text}", chunk.offset, item.name),
            path=source.name,
            fix="copy the directory again",
        )

    def _run(self, source: LocalSource, wanted: list[tuple[Read, int, str]], how: How) -> None:
        reads = [read for read, _, _ in wanted]
        direct = DIRECT[how.direct]
        try:
            reading = _C.Reading(source.file, None, reads, how.threads, direct, None, 0, how.verify)
            reading.wait(how.tick)
        except SoloError as error:
            raise read_error(source.name, error) from error
        for (_, size, address, _), crc, name in wanted if how.verify else ():
            if crc and _C.crc32_at(address, size) != crc:
                raise fail(
                    "checksum",
                    f"the data of {name!r} does not have its checksum",
                    path=source.name,
                    fix="copy the directory again",
                    record=name,
                )

    def _read_archive(self, chunk: Chunk, how: How) -> Any:
        """A chunk's archive as an object: a block inside a tensor, or a blob of torch.save."""
        source = self.file(chunk.file)
        if chunk.offset + chunk.length > source.size:
            raise fail("truncated", "it ends before its last chunk does", path=source.name)
        table = open_table(source, self.options, base=chunk.offset, size=chunk.length)
        rows = range(len(table.storages))
        cells = read_storages(table, Placement([CPU] * len(rows)), rows, how)
        tensors = make_tensors(table, cells, range(len(table.tensors)))
        return Builder(table, cells, self.extra, self.options.placeholders).build(tensors)

    def _blob_values(self) -> dict[str, Any]:
        if self._values is None:
            how = How(threads=1)
            self._values = {i.name: self._read_archive(i.chunks[0], how) for i in self.blobs}
        return self._values


def _minus(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip(one, other, strict=True))


def _tensor_at(address: int, item: Item) -> torch.Tensor:
    memory = (ctypes.c_uint8 * _bytes(item)).from_address(address)
    return torch.frombuffer(memory, dtype=item.dtype or torch.uint8).reshape(item.sizes or ())


def _inside(item: Item, chunk: Chunk) -> int | None:
    """The element where the chunk begins, if its elements lie together in the tensor."""
    at = 0
    stride = 1
    partial = False  # an inner axis is not whole: outer ones must have one element
    for offset, count, size in zip(
        reversed(chunk.offsets), reversed(chunk.sizes), reversed(item.sizes or ()), strict=True
    ):
        if partial and count != 1:
            return None
        partial = partial or count != size
        at += offset * stride
        stride *= size
    return at


def _nest(flat: dict[str, Any], planned: dict[str, Any]) -> dict[str, Any]:
    """The object as it was saved: names of the metadata to paths of keys and indices."""
    out: dict[Any, Any] = {}
    for name, value in flat.items():
        path = planned.get(name) or (name,)
        level: Any = out
        for key in path[:-1]:
            level = level.setdefault(key, {})
        level[path[-1]] = value
    return {key: _lists(value) for key, value in out.items()}


def _lists(value: Any) -> Any:
    """Dicts whose keys are 0, 1, 2, ... were lists: DCP names their elements by number."""
    if not isinstance(value, dict) or isinstance(value, OrderedDict):
        return value
    made = {key: _lists(part) for key, part in value.items()}
    if (
        made
        and all(isinstance(key, int) for key in made)
        and sorted(made) == list(range(len(made)))
    ):
        return [made[key] for key in range(len(made))]
    return made
