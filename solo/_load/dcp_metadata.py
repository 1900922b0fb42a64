"""What the ``.metadata`` of a torch.distributed.checkpoint directory says.

It is a pickle of a dozen known classes: they become the plain records below, and nothing of it
is unpickled.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any

import torch

from solo._load import paths
from solo._load.errors import CheckpointError, Problem, fail
from solo._load.objects import Builder
from solo._load.table import Options, Table, dtypes, open_table

PAIRS_EACH = 256  # neighbours of a chunk, on average, that are compared with it
MODULE = "torch.distributed.checkpoint.metadata"
ENCODING = f"{MODULE}._MEM_FORMAT_ENCODING"
GETATTR = "builtins.getattr"  # Python before 3.11.5 writes a member of an Enum as this of its class
CLASSES = (
    GETATTR,
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
        )
    ),
    ENCODING,
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.checkpoint._hf_utils._HFStorageInfo",
    "pathlib.PosixPath",
    "pathlib.Path",
    "pathlib.PurePosixPath",
    "pathlib._local.PosixPath",
)


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
        if name == GETATTR:
            return _member(*args)
        return Record(name, args) if name in CLASSES else super().call(name, args, created)

    def state(self, made: Any, name: str, state: Any) -> None:
        if not isinstance(made, Record):
            super().state(made, name, state)
        elif name.endswith(".TensorProperties"):
            made.fields["dtype"] = state[0]
        elif isinstance(state, dict):
            made.fields.update(state)


def _member(of: Any, name: Any) -> Record:
    """A member of the one Enum that the metadata holds; nothing is looked up."""
    if not isinstance(of, Record) or of.name != ENCODING or not isinstance(name, str):
        raise ValueError("it takes an attribute of something else than an Enum")
    return Record(ENCODING, (name,))


def _items(root: Record, path: str) -> dict[str, Item]:
    places: dict[tuple[str, tuple[int, ...] | None], Record] = {}
    for index, info in root.get("storage_data").items():
        offset = index.get("offset")
        places[index.get("fqn"), None if offset is None else tuple(offset)] = info
    items: dict[str, Item] = {}
    problems: list[Problem] = []
    for name, meta in root.get("state_dict_metadata").items():
        tensor = meta.name.endswith(".TensorStorageMetadata")
        sizes = _counts(meta.get("size")) if tensor else None
        dtype = meta.get("properties").get("dtype") if tensor else None
        if tensor and dtype not in dtypes():
            problems.append(Problem("dtype", f"{name!r} has a dtype that torch lacks", record=name))
            continue
        item = items[str(name)] = Item(str(name), dtype, sizes)
        for chunk in meta.get("chunks") if tensor else [None]:
            offsets = _counts(chunk.get("offsets")) if chunk else ()
            info = places.get((name, offsets if chunk else None)) or places.get((name, None))
            wrong = _wrong(str(name), info)
            if wrong is not None or info is None:
                problems += [wrong] if wrong else []
                continue
            shape = _counts(chunk.get("sizes")) if chunk else ()
            offset, length = _counts((info.get("offset"), info.get("length")))
            item.chunks.append(Chunk(offsets, shape, info.get("relative_path"), offset, length))
        problems += _uncovered(item)
    if problems:
        raise CheckpointError(problems, path=path, fix="save the checkpoint again")
    return items


def _counts(values: Any) -> tuple[int, ...]:
    """Sizes or offsets, if that is what they are."""
    counts = tuple(values)
    if any(type(count) is not int or not 0 <= count < 1 << 62 for count in counts):
        raise ValueError(f"{counts!r} are no sizes")
    return counts


def _wrong(name: str, info: Record | None) -> Problem | None:
    """What keeps a chunk's place from being read."""
    if info is None:
        return Problem("missing", f"{name!r} has a chunk without a place", record=name)
    file = info.get("relative_path")
    if not isinstance(file, str) or "\0" in file or os.path.isabs(file) or ".." in file.split("/"):
        return Problem("unsafe", f"{name!r} lies outside the directory: {file!r}", record=name)
    if info.get("transform_descriptors"):
        return Problem("unsupported", f"{name!r} is stored transformed", record=name)
    return None


def _uncovered(item: Item) -> list[Problem]:
    """Chunks must lie inside the tensor, apart from each other, and be all of it."""
    if item.sizes is None:
        return []
    inside = all(
        len(c.sizes) == len(c.offsets) == len(item.sizes)
        and all(o + s <= n for o, s, n in zip(c.offsets, c.sizes, item.sizes, strict=True))
        for c in item.chunks
    )
    count = sum(math.prod(c.sizes) for c in item.chunks)
    if inside and count == math.prod(item.sizes) and not _overlap(item.chunks):
        return []
    return [Problem("mismatch", f"the chunks of {item.name!r} do not cover it", record=item.name)]


def _overlap(chunks: list[Chunk]) -> bool:
    """Sorted along the axis that has most of them; only neighbours on it can meet.

    Raises:
        ValueError: too many are neighbours, as no mesh of ranks has them: it would take too long.
    """
    chunks = [chunk for chunk in chunks if math.prod(chunk.sizes)]
    axes = range(len(chunks[0].sizes)) if len(chunks) > 1 else ()
    if not axes:
        return len(chunks) > 1
    axis = max(axes, key=lambda a: len({chunk.offsets[a] for chunk in chunks}))
    chunks.sort(key=lambda chunk: chunk.offsets[axis])
    left = PAIRS_EACH * len(chunks)
    for at, one in enumerate(chunks):
        for number in range(at + 1, len(chunks)):
            other = chunks[number]
            if other.offsets[axis] >= one.offsets[axis] + one.sizes[axis]:
                break
            left -= 1
            if left < 0:
                raise ValueError(f"{len(chunks)} chunks of one tensor lie criss-cross")
            if all(
                o < p + q and p < o + s
                for o, s, p, q in zip(
                    one.offsets, one.sizes, other.offsets, other.sizes, strict=True
                )
            ):
                return True
    return False
