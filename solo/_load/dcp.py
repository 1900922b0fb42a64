"""Directories of torch.distributed.checkpoint, read without unpickling anything of them.

``.metadata`` is a pickle of a dozen known classes: they become the plain records below. Each
chunk of a tensor is a small torch archive of its own inside a ``.distcp`` file.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import torch

from solo import _C
from solo._load import paths
from solo._load.errors import CheckpointError, Problem, fail
from solo._load.objects import Builder
from solo._load.place import CPU, Placement, device_of
from solo._load.read import make_tensors, read_storages
from solo._load.single import Request, chooser, nothing_selected
from solo._load.source import DIRECT, LocalSource, Read
from solo._load.table import Options, Table, dtypes, open_table

MODULE = "torch.distributed.checkpoint.metadata"
CLASSES = (
    *(
        f"{MODULE}.{name}"
        for name in (
            "Metadata",
            "MetadataIndex",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "TensorProperties",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        )
    ),
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.checkpoint._hf_utils._HFStorageInfo",
    "pathlib.PosixPath",
    "pathlib.Path",
    "pathlib.PurePosixPath",
    "pathlib._local.PosixPath",
)
ARENA_ALIGN = 64


class Record:
    """One object of the metadata: its class's name, its attributes. Equal by content."""

    def __init__(self, name: str, args: tuple[Any, ...] = ()) -> None:
        self.name = name
        self.args = args
        self.fields: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:
        return self.fields.get(key, default)

    def __hash__(self) -> int:
        return id(self)


@dataclass
class Chunk:
    """A block of a tensor and the archive that holds it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    offset: int
    length: int


@dataclass
class Item:
    """A tensor (its chunks), or a blob of torch.save (one chunk without sizes)."""

    name: str
    dtype: torch.dtype | None
    sizes: tuple[int, ...] | None
    chunks: list[Chunk] = field(default_factory=list)


def is_dcp(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, ".metadata"))


def load(folder: str, request: Request) -> Any:
    """The nested object of a DCP directory, or with ``only`` a flat dict."""
    items, planned = read_metadata(folder)
    wanted = chooser(request.only)
    if wanted is not None:
        chosen = {name: item for name, item in items.items() if wanted(name)}
        if not chosen and request.strict:
            raise nothing_selected(request.only, items, folder)
        items = chosen
    flat = read_items(folder, items, request)
    if wanted is not None:
        return flat
    return _nest(flat, planned)


# ---- metadata ----


def read_metadata(folder: str) -> tuple[dict[str, Item], dict[str, Any]]:
    """Items by name, and where in the object each belongs."""
    path = os.path.join(folder, ".metadata")
    source = paths.open_local(path)
    table = open_table(source, Options(allowed=CLASSES, limits={"pickle_only": 1}))
    try:
        root = _Metadata(table).build([])
        return _items(root, path), dict(root.get("planner_data") or {})
    except (AttributeError, KeyError, TypeError, IndexError, ValueError) as error:
        raise fail(
            "damaged", f"its metadata is not as torch 2 writes it: {error}", path=path
        ) from error


class _Metadata(Builder):
    """The classes of the metadata as records; nothing else is allowed in it."""

    def __init__(self, table: Table) -> None:
        super().__init__(table, {}, {}, False)

    def resolve(self, name: str) -> Any:
        return Record(name) if name in CLASSES else super().resolve(name)

    def call(self, name: str, args: tuple[Any, ...], created: bool) -> Any:
        if name.startswith("pathlib."):
            return "/".join(str(part) for part in args)
        return Record(name, args) if name in CLASSES else super().call(name, args, created)

    def state(self, made: Any, name: str, state: Any) -> None:
        if not isinstance(made, Record):
            super().state(made, name, state)
        elif name.endswith(".TensorProperties"):
            made.fields["dtype"] = state[0]
        elif isinstance(state, dict):
            made.fields.update(state)


def _items(root: Record, path: str) -> dict[str, Item]:
    places: dict[tuple[str, tuple[int, ...] | None], Record] = {}
    for index, info in root.get("storage_data").items():
        offset = index.get("offset")
        places[index.get("fqn"), None if offset is None else tuple(offset)] = info
    items: dict[str, Item] = {}
    problems: list[Problem] = []
    for name, meta in root.get("state_dict_metadata").items():
        tensor = meta.name.endswith(".TensorStorageMetadata")
        sizes = tuple(meta.get("size")) if tensor else None
        dtype = meta.get("properties").get("dtype") if tensor else None
        if tensor and not isinstance(dtype, torch.dtype):
            problems.append(Problem("dtype", f"{name!r} has a dtype that torch lacks", record=name))
            continue
        item = items[name] = Item(name, dtype, sizes)
        for chunk in meta.get("chunks") if tensor else [None]:
            offsets = tuple(chunk.get("offsets")) if chunk else ()
            info = places.get((name, offsets if chunk else None)) or places.get((name, None))
            if info is None:
                problems.append(
                    Problem("missing", f"{name!r} has a chunk without a place", record=name)
                )
                continue
            file = info.get("relative_path")
            if os.path.isabs(file) or ".." in file.split("/"):
                problems.append(Problem("unsafe", f"{name!r} lies outside the directory: {file}"))
                continue
            if info.get("transform_descriptors"):
                problems.append(
                    Problem("unsupported", f"{name!r} is stored transformed", record=name)
                )
                continue
            shape = tuple(chunk.get("sizes")) if chunk else ()
            item.chunks.append(Chunk(offsets, shape, file, info.get("offset"), info.get("length")))
        problems += _uncovered(item)
    if problems:
        raise CheckpointError(problems, path=path, fix="save the checkpoint again")
    return items


def _uncovered(item: Item) -> list[Problem]:
    """Chunks inside the tensor, together as many elements as it has."""
    if item.sizes is None:
        return []
    inside = all(
        len(c.sizes) == len(c.offsets) == len(item.sizes)
        and all(
            o >= 0 and s >= 0 and o + s <= n
            for o, s, n in zip(c.offsets, c.sizes, item.sizes, strict=True)
        )
        for c in item.chunks
    )
    count = sum(torch.Size(c.sizes).numel() for c in item.chunks)
    if inside and count == torch.Size(item.sizes).numel():
        return []
    return [Problem("mismatch", f"the chunks of {item.name!r} do not cover it", record=item.name)]


# ---- data ----


class _Files:
    """The data files, each opened once."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.open: dict[str, LocalSource] = {}

    def get(self, name: str) -> LocalSource:
        if name not in self.open:
            source = paths.open_local(paths.find(os.path.join(self.folder, name)))
            assert isinstance(source, LocalSource)
            self.open[name] = source
        return self.open[name]


def read_items(folder: str, items: dict[str, Item], request: Request) -> dict[str, Any]:
    """Every tensor into one arena, chunk by chunk, with as few reads as the files allow."""
    files = _Files(folder)
    device = CPU if request.map_location is None else device_of(request.map_location)  # type: ignore[arg-type]
    tensors = {n: i for n, i in items.items() if i.sizes is not None}
    out: dict[str, Any] = {}
    if device.type == "meta":
        out = {n: torch.empty(i.sizes, dtype=i.dtype, device="meta") for n, i in tensors.items()}  # type: ignore[arg-type]
    else:
        out = _read_tensors(files, tensors, request)
    for name, item in items.items():
        if item.sizes is None:
            out[name] = _read_blob(files, item, request)
    if device.type not in ("cpu", "meta"):
        out = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in out.items()}
    return {name: out[name] for name in items}


def _read_tensors(files: _Files, items: dict[str, Item], request: Request) -> dict[str, Any]:
    places: dict[str, int] = {}
    size = 0
    for name, item in items.items():
        places[name] = size
        count = torch.Size(item.sizes or ()).numel() * _width(item)
        size = (size + count + ARENA_ALIGN - 1) // ARENA_ALIGN * ARENA_ALIGN
    arena = _C.Arena(max(size, 1), 0)
    out: dict[str, Any] = {}
    reads: dict[str, list[tuple[Read, int, str]]] = {}
    blocks: list[tuple[torch.Tensor, Chunk]] = []
    for name, item in items.items():
        sizes = item.sizes or ()
        count = torch.Size(sizes).numel()
        if count and item.dtype is not None:
            tensor = torch.frombuffer(arena, dtype=item.dtype, count=count, offset=places[name])
            tensor.resize_(sizes)
        else:
            tensor = torch.empty(sizes, dtype=item.dtype)
        out[name] = tensor
        for chunk in item.chunks:
            elements = torch.Size(chunk.sizes).numel()
            if not elements:
                continue
            target = _inside(item, chunk)
            if target is None:
                blocks.append((tensor, chunk))
                continue
            offset, bytes_, crc = _open_chunk(files, item, chunk)
            read = (offset, bytes_, arena.address + places[name] + target * _width(item), -1)
            reads.setdefault(chunk.file, []).append((read, crc, name))
    for file, wanted in reads.items():
        _run(files.get(file), wanted, request)
    for tensor, chunk in blocks:
        part = _read_archive(files, chunk, request)
        view = tensor
        for axis, (offset, count) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
            view = view.narrow(axis, offset, count)
        view.copy_(part)
    return out


def _width(item: Item) -> int:
    return item.dtype.itemsize if item.dtype is not None else 1


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


def _open_chunk(files: _Files, item: Item, chunk: Chunk) -> tuple[int, int, int]:
    """Offset, bytes and checksum of a chunk's data: the one storage of an archive that must
    be exactly what the metadata says."""
    source = files.get(chunk.file)
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


def _run(source: LocalSource, wanted: list[tuple[Read, int, str]], request: Request) -> None:
    how = request.how
    reads = [read for read, _, _ in wanted]
    direct = DIRECT[how.direct]
    _C.read(source.file, None, reads, how.threads, direct, False, 0, how.verify, how.tick)
    if not how.verify:
        return
    for (_, size, address, _), crc, name in wanted:
        if crc and _C.crc32_at(address, size) != crc:
            raise fail(
                "checksum",
                f"the data of {name!r} does not have its checksum",
                path=source.name,
                fix="copy the directory again",
                record=name,
            )


def _read_archive(files: _Files, chunk: Chunk, request: Request) -> Any:
    """A chunk's archive as an object: a block inside a tensor, or a blob of torch.save."""
    source = files.get(chunk.file)
    table = open_table(source, request.options, base=chunk.offset, size=chunk.length)
    rows = range(len(table.storages))
    cells = read_storages(table, Placement([CPU] * len(rows)), rows, request.how)
    tensors = make_tensors(table, cells, range(len(table.tensors)))
    return Builder(table, cells, request.extra, request.tensors_only).build(tensors)


def _read_blob(files: _Files, item: Item, request: Request) -> Any:
    return _read_archive(files, item.chunks[0], request)


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
