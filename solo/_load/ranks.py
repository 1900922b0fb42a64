"""Many ranks, one checkpoint: first they agree that it is the same one, then each reads, or
one reads and sends."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from solo import _C
from solo._load import collection, memory, read
from solo._load.errors import CheckpointError, Problem, fail
from solo._load.place import Placement
from solo._load.single import Request, build, content, named, prepare, select
from solo._load.source import RangeSource, Source
from solo._load.stable import wait_quiet
from solo._load.table import Options, Table, open_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from solo._load.paths import Where

log = logging.getLogger("solo.load")

WHOLE_BYTES = 1 << 30  # of data without checksums that is read twice, to be compared first
STEP_BYTES = 16 << 20  # of more than that, a sample in each of these
SAMPLE_BYTES = 64 << 10
TRIAL_BYTES = 8 << 20  # read and sent once to see which is faster
PIECE_BYTES = 64 << 20  # of one broadcast


def fingerprint(table: Table, *, all_data: bool = False) -> str:
    """16 bytes, in hexadecimal, that differ if the content does: the metadata with the writer's
    checksums in it; where there are none, all of the data as well, of large files samples unless
    ``all_data`` is asked for."""
    state = hashlib.blake2b(str(table.source.size).encode(), digest_size=16)
    for part in table.index.metadata() if table.chunks is None else table.chunks.metadata():
        state.update(part)
    if table.chunks is not None:
        return state.hexdigest()
    unproven = [storage for storage in table.storages if not storage.crc and storage.bytes]
    whole = all_data or sum(storage.bytes for storage in unproven) <= WHOLE_BYTES
    for storage in unproven:
        for at, size in _pieces(storage.bytes) if whole else _samples(storage.bytes):
            data = table.source.read(table.base + storage.offset + at, size)
            state.update(_C.crc32(data).to_bytes(4, "little"))
    return state.hexdigest()


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    """All of it, at most ``PIECE_BYTES`` at a time."""
    return ((at, min(PIECE_BYTES, count - at)) for at in range(0, count, PIECE_BYTES))


def _samples(count: int) -> Iterator[tuple[int, int]]:
    """A little of every ``STEP_BYTES``, and the end."""
    size = min(SAMPLE_BYTES, count)
    return ((at, size) for at in sorted({*range(0, count - size + 1, STEP_BYTES), count - size}))


def load_together(where: Where, request: Request, group: Any, share: str) -> Any:
    """Every rank of the group calls this; see ``solo.load``. What fails on one rank before data
    is read fails on all, so that none waits for another."""
    if share not in ("auto", "read", "broadcast"):
        raise fail("argument", f"share is {share!r}", fix="'auto', 'read' or 'broadcast'")
    tables, mine = _open_here(where, request)
    same = _agree(mine, where, group, share)
    if not same:
        tables = _replayed(tables, request, group)
    placed = _place_here(tables, where, request, group)
    if share == "auto":
        share = _faster(tables, group) if same else "broadcast"
    if share == "read":
        parts = [content(t, p, request) for t, p in zip(tables, placed, strict=True)]
    else:
        parts = [_broadcast(t, p, request, group) for t, p in zip(tables, placed, strict=True)]
    if len(parts) == 1:
        return parts[0]
    return {name: value for part in parts for name, value in part.items()}


def _gather(mine: dict[str, Any], group: Any) -> list[dict[str, Any]]:
    mine = {"rank": dist.get_rank(group), "host": socket.gethostname(), "error": "", **mine}
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    return everyone


def _errors_of(failed: list[dict[str, Any]], where: Where, fix: str) -> CheckpointError:
    return CheckpointError(
        [Problem("rank", f"rank {o['rank']} on {o['host']}: {o['error']}") for o in failed],
        path=str(where),
        fix=fix,
    )


def _open_here(where: Where, request: Request) -> tuple[list[Table], dict[str, Any]]:
    """The tables of this rank, and what it tells the others of them."""
    try:
        if request.wait_stable > 0:
            wait_quiet(where, request.wait_stable)
        tables = collection.open_tables(where, request)
        files = [
            (fingerprint(table, all_data=request.compare_all), table.source.identity())
            for table in tables
        ]
    except Exception as error:  # whatever it is, the other ranks must not wait for this one
        return [], {"path": str(where), "error": str(error)}
    return tables, {"path": str(where), "files": files, "kind": tables[0].kind}


def _agree(mine: dict[str, Any], where: Where, group: Any, share: str) -> bool:
    """Compare fingerprints over the group; False: this file is on some ranks only, and they
    may send it to the others."""
    everyone = _gather(mine, group)
    failed = [one for one in everyone if one["error"]]
    unsendable = everyone[0]["error"] or everyone[0]["kind"] == "DCP"
    if failed and (share == "read" or unsendable):
        fix = "put it there too" + ("" if unsendable else ", or let rank 0 send it")
        raise _errors_of(failed, where, fix)
    readers = [one for one in everyone if not one["error"]]
    first = readers[0]
    different = [
        one for one in readers if [f for f, _ in one["files"]] != [f for f, _ in first["files"]]
    ]
    if different:
        raise CheckpointError(
            [_other_file(one) for one in (first, *different)],
            path=str(where),
            fix="copy one file to all nodes, or let rank 0 send it: share='broadcast' with the "
            "path given on rank 0 alone",
        )
    return not failed


def same_file(where: Where, request: Request, group: Any) -> list[Table]:
    """The tables of a file that all ranks of the group have, or an error on all of them."""
    tables, mine = _open_here(where, request)
    _agree(mine, where, group, "read")
    return tables


def _place_here(tables: list[Table], where: Where, request: Request, group: Any) -> list[Placement]:
    """Place and check memory on every rank before any of them reads."""
    placed: list[Placement] = []
    mine: dict[str, Any] = {}
    try:
        placed = prepare(tables, request)
        mine["devices"] = sorted({_physical(d) for p in placed for d in p.devices} - {""})
    except Exception as error:
        mine["error"] = str(error)
    everyone = _gather(mine, group)
    failed = [one for one in everyone if one["error"]]
    if failed:
        raise _errors_of(failed, where, "all ranks stopped before any data was read")
    if dist.get_rank(group) == 0:
        for text in shared_devices(everyone):
            log.warning("%s: %s", where, text)
    return placed


def _physical(device: torch.device | str) -> str:
    """What tells one GPU of a host from another, whatever number a process has for it."""
    if not isinstance(device, torch.device) or device.type != "cuda":
        return ""
    return memory.physical(device)


def shared_devices(everyone: list[dict[str, Any]]) -> list[str]:
    """A sentence for each GPU that several ranks load to: it will hold that many copies."""
    users: dict[tuple[str, str], list[int]] = {}
    for one in everyone:
        for device in one.get("devices", ()):
            users.setdefault((one["host"], device), []).append(one["rank"])
    return [
        f"ranks {', '.join(map(str, who))} on {host} all load to the GPU {device}: give each its "
        "own with map_location='cuda' under torchrun"
        for (host, device), who in users.items()
        if len(who) > 1
    ]


def _other_file(one: dict[str, Any]) -> Problem:
    shown = "; ".join(
        f"{who.get('real_path', who['path'])} ({who['bytes']} bytes, fingerprint {print_[:12]}"
        + (f", written {_when(who['modified_ns'])}" if "modified_ns" in who else "")
        + ")"
        for print_, who in one["files"][:3]
    )
    return Problem("rank", f"rank {one['rank']} on {one['host']} has another file: {shown}")


def _when(modified_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(modified_ns / 1e9))


# ---- the index over the group ----


class _Recorded(Source):
    """Answers the reads of an index from what rank 0 read for the same index."""

    def __init__(self, name: str, size: int, metadata: list[tuple[int, bytes]]) -> None:
        self.name = name
        self.size = size
        self.metadata = metadata
        self.network = True  # never mapped here

    def read(self, offset: int, size: int) -> bytes:
        for start, data in self.metadata:
            if start <= offset and offset + size <= start + len(data):
                return data[offset - start : offset - start + size]
        raise fail("io", f"byte {offset} was not sent by rank 0", path=self.name)


class _Recording(Source):
    """A source that keeps what an index reads of it."""

    def __init__(self, source: Source) -> None:
        self.name, self.size = source.name, source.size
        self.source = source
        self.kept: list[tuple[int, bytes]] = []

    def read(self, offset: int, size: int) -> bytes:
        data = self.source.read(offset, size)
        self.kept.append((offset, data))
        return data


def _replayed(tables: list[Table], request: Request, group: Any) -> list[Table]:
    """The tables of rank 0 on every rank, whether it has the file or not."""
    sent: list[Any] = [None]
    if dist.get_rank(group) == 0:
        records = []
        for table in tables:
            recording = _Recording(table.source)
            recording.checkpoint(request.options, table.base)
            records.append((recording.name, recording.size, recording.kept))
        sent = [records]
    dist.broadcast_object_list(sent, src=dist.get_global_rank(_real(group), 0), group=group)
    if dist.get_rank(group) == 0:
        return tables
    options = Options(**request.options.__dict__)
    return [open_table(_Recorded(name, size, kept), options) for name, size, kept in sent[0]]


def _real(group: Any) -> Any:
    return dist.group.WORLD if group is None else group


# ---- data over the group ----


def _faster(tables: list[Table], group: Any) -> str:
    """Time one read on every rank at once against one broadcast of as much."""
    if any(table.chunks is not None for table in tables):
        return "read"  # of many small archives: what a trial of one range says is not true there
    table = max(tables, key=lambda t: t.source.size)
    size = min(TRIAL_BYTES, table.source.size)
    offset = (table.source.size - size) // 2
    dist.barrier(group=group)
    start = time.perf_counter()
    table.source.read(offset, size)
    spent = torch.tensor([time.perf_counter() - start, 0.0], dtype=torch.float64, device="cpu")
    data = torch.empty(size, dtype=torch.uint8, device="cpu")
    start = time.perf_counter()
    _send(data, group)
    spent[1] = time.perf_counter() - start
    spent = spent.to(_wire(group))
    dist.all_reduce(spent, op=dist.ReduceOp.MAX, group=group)
    return "read" if spent[0] <= spent[1] else "broadcast"


def _wire(group: Any) -> torch.device:
    """Where a group's collectives take their tensors from: the CPU if they can."""
    kinds = {device.type for device in _real(group)._device_types}
    return torch.device("cpu" if "cpu" in kinds or not kinds else "cuda")


def _send(data: torch.Tensor, group: Any) -> None:
    """From rank 0 to all, in place."""
    source = dist.get_global_rank(_real(group), 0)
    device = _wire(group)
    for at in range(0, data.numel(), PIECE_BYTES):
        piece = data[at : at + PIECE_BYTES]
        staged = piece.to(device)
        dist.broadcast(staged, src=source, group=group)
        if staged is not piece:
            piece.copy_(staged)


def _broadcast(table: Table, placed: Placement, request: Request, group: Any) -> Any:
    """Rank 0 reads, all get the bytes in their own arena, then build as alone."""
    rows = [r for r in range(len(table.storages)) if table.storages[r].bytes]
    places, size, congruent = read.layout(table, rows)
    arena = _C.Arena(max(size, 1), congruent)
    problem: list[Any] = [None]
    source = dist.get_global_rank(_real(group), 0)
    if dist.get_rank(group) == 0:
        reads = [
            (table.storages[r].offset, table.storages[r].bytes, arena.address + places[r], r)
            for r in rows
        ]
        try:
            read.run(table, reads, request.how, arena)
        except CheckpointError as error:
            problem = [str(error)]
    dist.broadcast_object_list(problem, src=source, group=group)
    if problem[0] is not None:
        raise CheckpointError(Problem("rank", f"rank 0 could not read: {problem[0]}"))
    flat = torch.frombuffer(arena, dtype=torch.uint8, count=max(size, 1))
    _send(flat, group)
    copy = dataclasses.replace(table, source=_Memory(table, arena, places))
    if all(device == torch.device("cpu") for device in placed.devices) and placed.restore is None:
        cells: dict[int, read.Cell] = {r: (arena, places[r]) for r in rows}
        cells.update({r: (bytearray(), 0) for r in range(len(table.storages)) if r not in cells})
        return _finish(copy, cells, request)
    return content(table if table.chunks is not None else copy, placed, request)


def _finish(table: Table, cells: dict[int, read.Cell], request: Request) -> Any:
    from solo._load.objects import Builder
    from solo._load.single import convert

    if table.info["big_endian"]:
        read._swap(table, cells)
    rows = select(table, request)
    numbers = range(len(table.tensors)) if rows is None else rows
    tensors = read.make_tensors(table, cells, numbers)
    if request.dtype is not None:
        convert(tensors, request.dtype)
    if request.only is None and table.has_object and table.kind != "TorchScript":
        builder = Builder(table, cells, request.extra, request.tensors_only)
        return build(table, tensors, builder)
    return named(table, tensors)


class _Memory(RangeSource):
    """Storages that are in an arena already, read like a file."""

    def __init__(self, table: Table, arena: Any, places: dict[int, int]) -> None:
        view = memoryview(arena)
        starts = {table.base + table.storages[r].offset: places[r] for r in places}
        ordered = sorted(starts)

        def fetch(offset: int, size: int) -> bytes:
            import bisect

            start = ordered[bisect.bisect_right(ordered, offset) - 1]
            at = starts[start] + offset - start
            return bytes(view[at : at + size])

        super().__init__(table.source.name, table.source.size, fetch, 1)

    def read(self, offset: int, size: int) -> bytes:
        return self._fetch(offset, size)

    def _check(self, index: Any, reads: Any, base: int, verify: bool) -> list[int]:
        return []  # rank 0 has checked
