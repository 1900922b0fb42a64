"""What is in a checkpoint, without reading its data."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from solo._load import collection, diagnose, objects, paths
from solo._load.errors import printable
from solo._load.memory import count_of, human
from solo._load.read import How
from solo._load.single import Request
from solo._load.table import Options, Table, dtype_names, refused_names

if TYPE_CHECKING:
    from solo._load.paths import Where


REFUSED = "load refuses it without safe_globals= or tensors_only=True, for what is no data"


@dataclass(frozen=True)
class TensorInfo:
    """One tensor by name.

    Attributes:
        name: keys of the object joined with '.'.
        shape: sizes.
        dtype: torch's name of it.
        bytes: of its own elements.
        device: that it was saved on.
        file: the file's base name.
        storage: which storage of the file; tensors with the same one share memory.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    device: str
    file: str
    storage: int


@dataclass
class Inspection:
    """A checkpoint's content.

    Attributes:
        path: as found.
        kind: "torch zip", "safetensors", "torch legacy", "TorchScript", "DCP".
        files: one dict each: path, kind, version, protocol, alignment, byte order, checksums.
        tensors: all of them, in the order of the files.
        stored_bytes: of all storages, each once.
        metadata: the text entries of safetensors files.
        wasted: storages of which tensors use less than half: key, bytes stored, bytes used.
        refused: what it names that is no data: ``load`` needs ``safe_globals=`` for it, or
            ``tensors_only=True``.
    """

    path: str
    kind: str
    files: list[dict[str, Any]] = field(default_factory=list)
    tensors: list[TensorInfo] = field(default_factory=list)
    stored_bytes: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    wasted: list[tuple[str, int, int]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [tensor.name for tensor in self.tensors]

    @property
    def tied(self) -> list[list[str]]:
        """Groups of names that share one storage."""
        groups: dict[tuple[str, int], list[str]] = {}
        for tensor in self.tensors:
            groups.setdefault((tensor.file, tensor.storage), []).append(tensor.name)
        return [names for names in groups.values() if len(names) > 1]

    @property
    def devices(self) -> dict[str, int]:
        """How many tensors were saved on which device."""
        return dict(Counter(tensor.device for tensor in self.tensors))

    def text(self, *, limit: int = 0) -> str:
        """For people; ``limit`` tensors at most, 0: all."""
        lines = [
            f"{self.path}: {self.kind}, {count_of(len(self.tensors), 'tensor')}, "
            f"{human(self.stored_bytes)}"
        ]
        for file in self.files:
            details = ", ".join(
                f"{k} {v}" for k, v in file.items() if k != "path" and v not in ("", None)
            )
            lines.append(f"  {os.path.basename(file['path'])}: {details}")
        lines.append("  saved on: " + ", ".join(f"{d} ({c})" for d, c in self.devices.items()))
        lines += [f"  tied: {', '.join(names)}" for names in self.tied[:20]]
        lines += [
            f"  storage {name}: {human(stored)} stored, {human(used)} used by its tensors"
            for name, stored, used in self.wasted[:20]
        ]
        if self.refused:
            lines.append(f"  {REFUSED}: {diagnose.marked(self.refused)}")
        shown = self.tensors[:limit] if limit > 0 else self.tensors
        for tensor in shown:
            lines.append(
                f"  {tensor.name}  {list(tensor.shape)} {tensor.dtype}  {human(tensor.bytes)}"
            )
        if len(shown) < len(self.tensors):
            lines.append(f"  and {len(self.tensors) - len(shown)} more")
        return "\n".join(printable(line) for line in lines)


def inspect(
    path: Where,
    *,
    storage_options: dict[str, Any] | None = None,
    limits: dict[str, int] | None = None,
) -> Inspection:
    """Names, shapes, dtypes, sizes, saved devices, format and versions; no data is read.

    Raises:
        CheckpointError: everything that is wrong with the file.
    """
    found = paths.locate(paths.meant(path), storage_options=storage_options, threads=0)
    extra = objects.allowed_names(())
    options = Options(tuple(extra), True, limits=dict(limits or {}))
    opened = collection.open_found(found, Request(options, How(), extra))
    tables = opened.tables if isinstance(opened, collection.Shards) else [opened]
    where = opened.path if isinstance(opened, collection.Shards) else opened.source.name
    out = Inspection(where, tables[0].kind if tables else "index")
    for table in tables:
        _add(out, table)
        out.refused += refused_names(table, options)
        if table.chunks is not None:
            out.files = _files_of(table)
    return out


def _add(out: Inspection, table: Table) -> None:
    info = table.info
    file = os.path.basename(table.source.name)
    out.files.append(
        {
            "path": table.source.name,
            "kind": table.kind,
            "bytes": table.source.size,
            "version": info["version"] or None,
            "protocol": info["protocol"] or None,
            "alignment": info["alignment"] or None,
            "byte order": "big" if info["big_endian"] else "little",
            "checksums": "yes" if info["crc_known"] else "none",
            "identity": info["identity"],
            "file system": table.source.filesystem + (" (network)" if table.source.network else ""),
        }
    )
    note = objects.note_of(table)
    out.metadata.update({str(key): str(value) for key, value in note.items()})
    used: dict[int, int] = {}
    for name, _, number in table.names:
        row = table.tensors[number]
        count = tensor_bytes(table, number)
        used[row.storage] = used.get(row.storage, 0) + count
        out.tensors.append(
            TensorInfo(
                name,
                row.sizes,
                dtype_names()[row.dtype],
                count,
                table.storages[row.storage].location,
                file,
                row.storage,
            )
        )
    for number, storage in enumerate(table.storages):
        out.stored_bytes += storage.bytes
        if storage.bytes > 1 << 20 and used.get(number, 0) < storage.bytes // 2:
            out.wasted.append((storage.key, storage.bytes, used.get(number, 0)))


def tensor_bytes(table: Table, number: int) -> int:
    """Bytes of the tensor's own elements."""
    from solo._load.table import dtype_bits

    row = table.tensors[number]
    elements = 1
    for size in row.sizes:
        elements *= size
    return elements * dtype_bits()[row.dtype] // 8


def _files_of(table: Table) -> list[dict[str, Any]]:
    """The data files of a DCP directory."""
    names = sorted({chunk.file for item in table.chunks.items.values() for chunk in item.chunks})
    paths_of = [os.path.join(table.source.name, name) for name in names]
    return [{"path": path, "bytes": os.path.getsize(path)} for path in paths_of]
