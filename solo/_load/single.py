"""One file: table, placement, memory, data, object."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from solo._load import auto_map, ledger, memory, optimizer, place, read
from solo._load.errors import CheckpointError, Problem, fail
from solo._load.objects import Builder
from solo._load.place import DeviceMap, MapLocation, Placement
from solo._load.read import How
from solo._load.table import Options, Table, dtypes

log = logging.getLogger("solo.load")

Only = None | str | Iterable[str] | Callable[[str], bool]


@dataclass
class Request:
    """Everything a caller asked for; see ``solo.load`` for the meaning of each."""

    options: Options
    how: How
    extra: Mapping[str, Any] = field(default_factory=dict)
    map_location: MapLocation = None
    device_map: DeviceMap = None
    max_memory: Mapping[str, int | str] | None = None
    no_split: Sequence[str] = ()
    dtype: torch.dtype | None = None
    only: Only = None
    strict: bool = True
    tensors_only: bool = False
    memory_limit: int | str | None = None
    gpu_memory_limit: int | str | None = None
    storage_options: dict[str, Any] | None = None
    loaded: dict[str, int] = field(default_factory=dict)  # bytes by device, of all files
    storages: Mapping[int, list[int]] | None = None  # by id of a table, of load_into: those alone
    compare_all: bool = False  # of ranks together: all data that has no checksums
    wait_stable: float = 0.0  # of ranks together, which must not try again one by one
    claim: ledger.Claim | None = None  # None: nothing is loaded, as by ``plan``


def chooser(only: Only) -> Callable[[str], bool] | None:
    """``only`` as a question about a name: a module prefix, a pattern, or the caller's own."""
    if only is None:
        return None
    if callable(only):
        return only
    patterns = [only] if isinstance(only, str) else only if isinstance(only, Iterable) else [only]
    patterns = list(patterns)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise fail("argument", f"only={only!r} has something that is no name")

    def wanted(name: str) -> bool:
        return any(
            name == p or name.startswith(p + ".") or fnmatch.fnmatchcase(name, p) for p in patterns
        )

    return wanted


def select(table: Table, request: Request) -> list[int] | None:
    """Rows of the tensors that ``only`` names; None: all of the file."""
    wanted = chooser(request.only)
    if wanted is None:
        return None
    return sorted({n.tensor for n in table.names if wanted(n.name) or wanted(n.name[n.key_at :])})


def nothing_selected(only: Only, names: Iterable[str], path: str) -> CheckpointError:
    import difflib

    known = list(names)
    patterns = (
        [only] if isinstance(only, str) else [] if only is None or callable(only) else list(only)
    )
    near = [m for p in patterns for m in difflib.get_close_matches(p, known, n=2, cutoff=0.4)]
    hint = f"near names: {', '.join(near)}" if near else f"it has {len(known)} tensors"
    return CheckpointError(
        Problem("argument", f"only={patterns or only!r} names no tensor; {hint}"), path=path
    )


def placements(tables: Sequence[Table], request: Request) -> list[Placement]:
    """The device of each storage of each file, by map_location or device_map."""
    if request.device_map != "auto" and (request.max_memory is not None or request.no_split):
        text = "max_memory and no_split are of device_map='auto'"
        raise fail("argument", text, fix="device_map='auto', or leave them out")
    if request.device_map is None:
        return [place.by_location(table, request.map_location) for table in tables]
    if request.map_location is not None:
        raise fail("argument", "map_location and device_map exclude each other")
    device_map = request.device_map
    if device_map != "auto" and not isinstance(device_map, Mapping):
        return [place.by_location(table, device_map, "device_map") for table in tables]
    follows = [optimizer.owners_in(table) for table in tables]
    if isinstance(device_map, Mapping):
        return place.by_names(tables, device_map, follows)
    chosen = auto_map.choose(tables, request.max_memory, request.no_split, follows)
    return place.by_names(tables, chosen, follows, "max_memory")


def storages_to_read(table: Table, request: Request) -> list[int]:
    """With everything wanted, also storages that no tensor of the table is made of."""
    if request.storages is not None:
        return request.storages.get(id(table), [])
    rows = select(table, request)
    if rows is None:
        return list(range(len(table.storages)))
    return read.storages_of(table, rows)


def needed(
    tables: Sequence[Table], placed: Sequence[Placement], request: Request
) -> dict[str, int]:
    """Bytes by device that this request will take."""
    out: dict[str, int] = {}
    for table, placement in zip(tables, placed, strict=True):
        last, name = None, ""
        for row in storages_to_read(table, request):
            device, count = placement.devices[row], table.storages[row].bytes
            if device is not last:  # writing a device's name takes its time
                last, name = device, str(device)
                if name == place.DISK or (name == "cpu" and request.how.mode == "mmap"):
                    name = place.DISK if table.mappable else "cpu"
            if request.dtype is not None and name != place.DISK:
                count = max(count, count * request.dtype.itemsize // width_of(table, row))
            out[name] = out.get(name, 0) + count
    return out


def width_of(table: Table, storage: int) -> int:
    """Bytes of an element that ``dtype=`` would convert; of others, as many as it has then."""
    dtype = dtypes()[table.storages[storage].dtype]
    floating = dtype is not None and dtype.is_floating_point
    return dtype.itemsize if dtype is not None and floating else 1 << 62


def prepare(tables: Sequence[Table], request: Request) -> list[Placement]:
    """Place, say what was decided, and check memory: all before any data is read."""
    placed = placements(tables, request)
    for table, placement in zip(tables, placed, strict=True):
        for note in placement.notes:
            log.warning("%s: %s", table.source.name, note)
    request.loaded = needed(tables, placed, request)
    host = sum(count for name, count in request.loaded.items() if name != place.DISK)
    limited = request.memory_limit is not None or request.gpu_memory_limit is not None
    worth = limited or host >= ledger.SMALL_BYTES
    with ledger.opened() if worth else contextlib.nullcontext() as book:
        memory.check(
            request.loaded,
            path=tables[0].source.name,
            memory_limit=request.memory_limit,
            gpu_memory_limit=request.gpu_memory_limit,
            book=book,
        )
        if book is not None and request.claim is not None:
            request.claim.enter(book, request.loaded)
    return placed


def load_table(table: Table, placed: Placement, request: Request) -> tuple[list[Any], Builder]:
    """The tensors of a table (None where not selected), and what builds its object."""
    rows = select(table, request)
    numbers = range(len(table.tensors)) if rows is None else rows
    unfinished: list[read.Finish] = []
    cells = read.read_storages(
        table, placed, storages_to_read(table, request), request.how, unfinished
    )
    tensors = read.make_tensors(table, cells, numbers)
    for finish in unfinished:
        finish()
    if request.dtype is not None:
        convert(tensors, request.dtype)
    return tensors, Builder(table, cells, request.extra, request.tensors_only)


def convert(tensors: list[Any], dtype: torch.dtype) -> None:
    """Floating tensors to ``dtype``, one by one, so that each old one is freed before the next."""
    for number, tensor in enumerate(tensors):
        if tensor is not None and tensor.is_floating_point() and tensor.dtype != dtype:
            tensors[number] = tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)
            del tensor


def named(table: Table, tensors: list[Any]) -> dict[str, Any]:
    """The tensors by name, in the order of the file."""
    return {n.name: tensors[n.tensor] for n in table.names if tensors[n.tensor] is not None}


def build(table: Table, tensors: list[Any], builder: Builder) -> Any:
    """The object of a file, or of a directory of chunks."""
    if table.chunks is not None:
        return table.chunks.object(named(table, tensors))
    return builder.build(tensors)


def load_single(table: Table, request: Request) -> Any:
    """What the file holds, or with ``only`` (or no object in it) its tensors by name."""
    (placed,) = prepare([table], request)
    return content(table, placed, request)


def content(table: Table, placed: Placement, request: Request) -> Any:
    """One file that is placed and fits."""
    tensors, builder = load_table(table, placed, request)
    if request.only is None and table.has_object and table.kind != "TorchScript":
        return build(table, tensors, builder)
    found = named(table, tensors)
    if request.only is not None and not found and request.strict:
        raise nothing_selected(request.only, (n.name for n in table.names), table.source.name)
    return found
