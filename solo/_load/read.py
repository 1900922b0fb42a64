"""Data: storages to memory, tensors as views of it.

On the CPU all storages of a file share one arena that is laid out like the file, so that a
few large reads fill it; each is still a storage of its own to torch, and large ones give
their pages back when the last tensor of them is gone.
"""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from solo import _C
from solo._load.errors import CheckpointError, Problem, fail, read_error
from solo._load.place import DISK, Placement
from solo._load.stage import RING_BYTES, to_device
from solo._load.table import Table, dtype_bits, dtype_names, torch_dtype

if TYPE_CHECKING:
    from solo._load.source import Read, Tick

log = logging.getLogger("solo.load")

BLOCK = 4096  # what direct reads and pages are aligned to
THREADS_MAX = 64
SLICE_BYTES = 1 << 20  # storages from here on free their own pages
DENSE = 0.9  # share of a file from which its layout is kept whole


@dataclass
class How:
    """How to read; see ``solo.load``."""

    threads: int = 0
    direct: str = "auto"
    verify: bool = True
    mode: str = "copy"
    tick: Tick | None = None


Finish = Callable[[], None]
Cell = tuple[Any, int]  # a buffer and where in it; or an UntypedStorage and -1


def read_storages(
    table: Table,
    placement: Placement,
    rows: Iterable[int],
    how: How,
    unfinished: list[Finish] | None = None,
) -> dict[int, Cell]:
    """Bring these storages where they belong. With ``unfinished``, data may still be coming
    when this returns: each of what it holds then must be called before any is looked at."""
    cells: dict[int, Cell] = {}
    if table.info["big_endian"] or placement.restore is not None:
        unfinished = None
    groups: dict[torch.device | str, list[int]] = {}
    for row in rows:
        device = placement.devices[row]
        if how.mode == "mmap" and device == torch.device("cpu"):
            device = DISK
        groups.setdefault(device, []).append(row)
    for device, group in groups.items():
        if device == DISK:
            cells.update(_map(table, group, how))
        elif device == torch.device("cpu"):
            cells.update(_copy(table, group, how, unfinished))
        elif isinstance(device, torch.device) and device.type == "meta":
            for row in group:
                storage = torch.UntypedStorage(table.storages[row].bytes, device="meta")  # type: ignore[no-untyped-call]
                cells[row] = (storage, -1)
        elif table.chunks is not None:
            cells.update(_through_host(table, group, torch.device(device), how))
        else:
            cells.update(to_device(table, group, torch.device(device), how))
    if table.info["big_endian"]:
        _swap(table, cells)
    if placement.restore is not None:
        _restore(table, cells, placement.restore)
    return cells


def untyped(cell: Cell, size: int) -> torch.UntypedStorage:
    """The storage of a cell, made now if it is memory so far."""
    buffer, at = cell
    if at < 0:
        return buffer  # type: ignore[no-any-return]
    if size == 0:
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    return torch.frombuffer(buffer, dtype=torch.uint8, count=size, offset=at).untyped_storage()


# ---- copies ----


def _copy(
    table: Table, rows: list[int], how: How, unfinished: list[Finish] | None = None
) -> dict[int, Cell]:
    plain = [r for r in rows if table.storages[r].bytes and _is_stored(table, r)]
    places, size, congruent = layout(table, plain)
    cells: dict[int, Cell] = {}
    if size:
        arena = _C.Arena(size, congruent)
        address = arena.address
        reads = []
        for r, place in places.items():
            _, _, count, offset, *_ = table.storages[r]
            reads.append((offset, count, address + place, r))
        finish = begin(table, reads, how, arena)
        if unfinished is None:
            finish()
        else:
            unfinished.append(finish)
        for _, count, at, r in reads:
            large = count >= SLICE_BYTES
            place = at - address
            cells[r] = (arena.slice(place, count), 0) if large else (arena, place)
    for r in rows if len(cells) < len(rows) else ():
        if r not in cells:
            data = _inflate(table, r) if table.storages[r].bytes else bytearray()
            cells[r] = (data, 0)
    return cells


def _through_host(table: Table, rows: list[int], device: torch.device, how: How) -> dict[int, Cell]:
    """To a device what cannot be read in pieces: a few storages at a time through the host."""
    cells: dict[int, Cell] = {}
    for batch in batches(table, rows, RING_BYTES):
        for row, cell in _copy(table, batch, how).items():
            host = untyped(cell, table.storages[row].bytes)
            cells[row] = (host.to(device=device), -1)
    return cells


def _is_stored(table: Table, row: int) -> bool:
    return table.storages[row].packed == table.storages[row].bytes


def layout(table: Table, rows: list[int]) -> tuple[dict[int, int], int, int]:
    """Place of each storage in an arena, the arena's size, and what its address is congruent to.

    Dense: as in the file. Sparse: runs of neighbours, each on blocks of its own. A storage
    that the file does not align for its dtype has a place of its own at the end.
    """
    if not rows:
        return {}, 0, 0
    storages = table.storages
    align = alignments(table)
    base = table.base
    loose, tight = [], []
    used = 0
    for offset, r in sorted([(storages[r].offset, r) for r in rows]):
        _, dtype, count, *_ = storages[r]
        if (base + offset) % align[dtype]:
            loose.append(r)
        else:
            tight.append(r)
            used += count
    places: dict[int, int] = {}
    size = congruent = 0
    if tight:
        start = storages[tight[0]].offset
        span = storages[tight[-1]].offset + storages[tight[-1]].bytes - start
        congruent = table.base + start
        if used >= DENSE * span or len(tight) * 512 + used >= span:
            places = {r: storages[r].offset - start for r in tight}
            size = span
        else:
            size = _sparse(table, tight, congruent, places)
    if loose:
        at = (size + 2 * BLOCK) // BLOCK * BLOCK + BLOCK
        at += (-congruent) % 64
        for r in loose:
            places[r] = at
            at = (at + storages[r].bytes + 63) // 64 * 64
        size = at
    return places, size, congruent


def alignments(table: Table) -> list[int]:
    """By dtype, what the address of a storage must be a multiple of. Storages of a pickle may
    be untyped (any dtype up to 8 bytes is in them); in safetensors each is one tensor."""
    if table.has_object:
        return [8] * len(dtype_bits())
    return [min(8, max(1, bits // 8)) for bits in dtype_bits()]


def _sparse(table: Table, rows: list[int], congruent: int, places: dict[int, int]) -> int:
    """Runs of neighbours, each beginning in a block of its own; gives the end."""
    end = -1
    shift = at = 0
    for r in rows:
        offset, count = table.storages[r].offset, table.storages[r].bytes
        if end < 0 or offset - end > BLOCK:
            at = 0 if end < 0 else (at + congruent) // BLOCK * BLOCK + BLOCK - congruent
            inside = (table.base + offset) % BLOCK
            at += (inside - (at + congruent)) % BLOCK
            shift = at - offset
        places[r] = offset + shift
        at = places[r] + count
        end = offset + count
    return at


def run(table: Table, reads: list[Read], how: How, arena: Any = None) -> None:
    """Read, and raise what is wrong with all of it."""
    begin(table, reads, how, arena)()


def begin(table: Table, reads: list[Read], how: How, arena: Any = None) -> Finish:
    """Begin to read; what is given waits for the end and raises what is wrong."""
    if table.chunks is not None:
        table.chunks.read_to([(row, address) for _, _, address, row in reads], how)
        return lambda: None
    with _errors_of(table):
        wait = table.source.begin(table.index, reads, arena, table.base, how)

    def finish() -> None:
        with _errors_of(table):
            wrong = wait()
        if wrong:
            raise checksum_error(table, wrong)

    return finish


@contextlib.contextmanager
def _errors_of(table: Table) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise read_error(table.source.name, error) from error


def checksum_error(table: Table, wrong: list[int]) -> CheckpointError:
    problems = []
    for row in wrong:
        storage = table.storages[row]
        names = table.names_of_storage(row)
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        problems.append(
            Problem(
                "checksum",
                f"record data/{storage.key} ({storage.bytes} bytes at {storage.offset}) does not "
                f"have its checksum; of it: {shown or 'no named tensor'}",
                offset=storage.offset,
                record=storage.key,
            )
        )
    whole = len(table.storages) - len(wrong)
    return CheckpointError(
        problems,
        path=table.source.name,
        fix=f"copy or download it again; {whole} of {len(table.storages)} storages are whole: "
        "only= loads them, verify=False ignores checksums",
    )


def _inflate(table: Table, row: int) -> bytearray:
    """A compressed record, which torch never writes but zip tools do. Bounded by its size."""
    storage = table.storages[row]
    data = table.source.read(table.base + storage.offset, storage.packed)
    try:
        stream = zlib.decompressobj(-15)
        out = bytearray(stream.decompress(data, storage.bytes))
        complete = len(out) == storage.bytes and not stream.decompress(stream.unconsumed_tail, 1)
    except zlib.error as error:
        raise fail(
            "damaged", f"record data/{storage.key}: {error}", path=table.source.name
        ) from None
    if not complete:
        raise fail(
            "mismatch",
            f"record data/{storage.key} does not inflate to its {storage.bytes} bytes",
            path=table.source.name,
        )
    if storage.crc and _C.crc32(out) != storage.crc:
        raise checksum_error(table, [row])
    return out


# ---- in the file ----


def _map(table: Table, rows: list[int], how: How) -> dict[int, Cell]:
    """The file itself as memory; what cannot be mapped is copied."""
    source = table.source
    file = getattr(source, "file", None)
    if file is None or not table.mappable:
        log.info("%s is not mapped but copied: %s", source.name, _why_not_mapped(table))
        return _copy(table, rows, how)
    align = alignments(table)
    mappable = [
        r
        for r in rows
        if _is_stored(table, r)
        and table.storages[r].bytes
        and (table.base + table.storages[r].offset) % align[table.storages[r].dtype] == 0
        and not table.info["big_endian"]
    ]
    try:
        arena = _C.Arena(source.size, 0, file) if mappable else None
    except Exception as error:  # ENODEV of some file systems
        log.info("%s is not mapped but copied: %s", source.name, error)
        return _copy(table, rows, how)
    cells: dict[int, Cell] = {}
    view = memoryview(arena) if arena is not None else None
    for r in mappable:
        at = table.base + table.storages[r].offset
        header = table.index.header_offset(r)
        if header >= 0 and view is not None:
            try:
                table.index.local_check(r, view[table.base + header : at])
            except Exception as error:
                raise read_error(table.source.name, error) from error
        cells[r] = (arena, at)
    rest = [r for r in rows if r not in cells]
    if any(table.storages[r].bytes for r in rest):
        log.info(
            "%s: %d storages are not mapped but copied: compressed, of the other byte order, or "
            "not aligned in the file as their dtype needs (the legacy format aligns nothing)",
            source.name,
            len(rest),
        )
    cells.update(_copy(table, rest, how))
    return cells


def _why_not_mapped(table: Table) -> str:
    if table.chunks is not None:
        return "a DCP directory keeps tensors in pieces"
    if getattr(table.source, "file", None) is None:
        return "it is no file of this machine"
    return f"it lies on {table.source.filesystem}, where a mapping is slow or can hang"


# ---- after reading ----


def _swap(table: Table, cells: dict[int, Cell]) -> None:
    """A file of the other byte order: swap by the element size of the tensors in a storage."""
    dtype_of: dict[int, int] = {}
    for tensor in table.tensors:
        dtype_of.setdefault(tensor.storage, tensor.dtype)
    for row, cell in cells.items():
        number = dtype_of.get(row, table.storages[row].dtype)
        storage = untyped(cell, table.storages[row].bytes)
        if storage.device.type != "meta" and dtype_bits()[number] > 8:
            storage.byteswap(torch_dtype(number, table.storages[row].key))  # type: ignore[no-untyped-call]
            cells[row] = (storage, -1)


def _restore(table: Table, cells: dict[int, Cell], function: Callable[[Any, str], Any]) -> None:
    for row, cell in cells.items():
        storage = untyped(cell, table.storages[row].bytes)
        placed = function(storage, table.storages[row].location)
        if placed is None:
            placed = storage
        if isinstance(placed, torch.storage.TypedStorage):
            placed = placed.untyped()  # type: ignore[no-untyped-call]
        if not isinstance(placed, torch.UntypedStorage):
            raise fail(
                "argument",
                f"the function of map_location gave {type(placed).__name__}, not a storage",
                path=table.source.name,
            )
        cells[row] = (placed, -1)


def make_tensors(table: Table, cells: dict[int, Cell], wanted: Iterable[int]) -> list[Any]:
    """The tensor of each row, None where its storage is not among the cells."""
    out: list[Any] = [None] * len(table.tensors)
    rows, storages = table.tensors, table.storages
    uses = [0] * len(storages)
    for row in rows:
        uses[row[0]] += 1
    frombuffer = torch.frombuffer
    shared: dict[int, torch.UntypedStorage] = {}
    dtypes = [
        None if name.startswith("q") else getattr(torch, name, None) for name in dtype_names()
    ]
    bits = dtype_bits()
    for number in wanted:
        storage, dtype, first, sizes, strides, grad, contiguous, metadata = rows[number]
        if storage not in cells:
            continue
        buffer, at = cells[storage]
        count = storages[storage][2] * 8 // bits[dtype]
        kind = dtypes[dtype]
        if kind is None:
            kind = torch_dtype(
                dtype, next((n.name for n in table.names if n.tensor == number), "?")
            )
        if at >= 0 and contiguous and prod(sizes) == count > 0 == first and uses[storage] == 1:
            tensor = frombuffer(buffer, dtype=kind, count=count, offset=at)
            if len(sizes) > 1:
                tensor.resize_(*sizes)  # by far quicker than with a tuple
            elif not sizes:
                tensor.resize_(())
            if 1 in sizes and tensor.stride() != strides:  # of an axis of one any stride will do
                tensor.as_strided_(sizes, strides)
        else:
            held = shared.get(storage)
            if held is None:
                held = shared[storage] = untyped((buffer, at), storages[storage][2])
            tensor = torch.empty((0,), dtype=kind, device=held.device)
            tensor.set_(held, first, sizes, strides)
        if grad:
            tensor.requires_grad_(True)
        if metadata:
            torch._C._set_tensor_metadata(tensor, table.index.tensor_metadata(number))  # type: ignore[attr-defined]
        out[number] = tensor
    return out


def storages_of(table: Table, wanted: Iterable[int]) -> list[int]:
    """The storages behind these tensors, in the order of the file."""
    rows = {table.tensors[number].storage for number in wanted}
    return sorted(rows, key=lambda r: table.storages[r].offset)


def batches(table: Table, rows: list[int], limit: int) -> Iterator[list[int]]:
    """Storages in runs of at most ``limit`` bytes (or one that is larger)."""
    batch: list[int] = []
    size = 0
    for row in rows:
        count = table.storages[row].bytes
        if batch and size + count > limit:
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += count
    if batch:
        yield batch
