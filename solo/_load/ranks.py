"""Many ranks, one checkpoint: first they agree that it is the same one, then each reads, or
one reads and sends."""

from __future__ import annotations

import hashlib
import socket
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from solo import _C
from solo._load import collection, dcp, paths, read
from solo._load.errors import CheckpointError, Problem, fail
from solo._load.place import Placement
from solo._load.single import Request, content, named, placements, prepare, select
from solo._load.source import RangeSource, Source
from solo._load.table import Options, Table, open_table

if TYPE_CHECKING:
    from solo._load.paths import Where

SAMPLE_BYTES = 64 << 10  # of each storage that has no checksum
TRIAL_BYTES = 8 << 20  # read and sent once to see which is faster
PIECE_BYTES = 64 << 20  # of one broadcast


def fingerprint(table: Table) -> str:
    """16 bytes, in hexadecimal, that differ if the content does: the metadata with the writer's
    checksums in it; where there are none, samples of every storage as well."""
    state = hashlib.blake2b(str(table.source.size).encode(), digest_size=16)
    for part in table.index.metadata():
        state.update(part)
    for storage in table.storages:
        if storage.crc or not storage.bytes:
            continue
        size = min(SAMPLE_BYTES, storage.bytes)
        for at in {0, (storage.bytes - size) // 2, storage.bytes - size}:
            state.update(table.source.read(table.base + storage.offset + at, size))
    return state.hexdigest()


def load_together(where: Where, request: Request, group: Any, share: str) -> Any:
    """Every rank of the group calls this; see ``solo.load``."""
    if share not in ("auto", "read", "broadcast"):
        raise fail("argument", f"share is {share!r}", fix="'auto', 'read' or 'broadcast'")
    tables, error = _open_here(where, request)
    same = _agree(tables, error, where, group, share)
    if not same:
        tables = _replayed(tables, request, group)
    if share == "auto":
        share = "read" if not same else _faster(tables, group)
        if not same:
            share = "broadcast"
    if share == "read":
        placed = prepare(tables, request)
        parts = [content(t, p, request) for t, p in zip(tables, placed, strict=True)]
    else:
        parts = [_broadcast(table, request, group) for table in tables]
    if len(parts) == 1:
        return parts[0]
    return {name: value for part in parts for name, value in part.items()}


def _open_here(where: Where, request: Request) -> tuple[list[Table], str]:
    try:
        found = paths.locate(
            where, storage_options=request.storage_options, threads=request.how.threads
        )
        if found.directory and dcp.is_dcp(found.directory):
            raise fail(
                "unsupported",
                "a DCP directory is read by each rank: leave group out",
                path=found.directory,
            )
        opened = collection.open_found(found, request)
    except CheckpointError as error:
        return [], str(error)
    return (opened.tables if isinstance(opened, collection.Shards) else [opened]), ""


def _agree(tables: list[Table], error: str, where: Where, group: Any, share: str) -> bool:
    """Compare fingerprints over the group; False: this file is on some ranks only, and they
    may send it to the others."""
    mine = {
        "rank": dist.get_rank(group),
        "host": socket.gethostname(),
        "path": str(where),
        "files": [(fingerprint(table), table.source.identity()) for table in tables],
        "error": error,
    }
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    failed = [one for one in everyone if one["error"]]
    if failed and (share == "read" or everyone[0]["error"]):
        raise CheckpointError(
            [
                Problem("rank", f"rank {one['rank']} on {one['host']}: {one['error']}")
                for one in failed
            ],
            path=str(where),
            fix="put the file there too, or let rank 0 send it: share='broadcast'",
        )
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
    table = max(tables, key=lambda t: t.source.size)
    size = min(TRIAL_BYTES, table.source.size)
    offset = (table.source.size - size) // 2
    dist.barrier(group=group)
    start = time.perf_counter()
    table.source.read(offset, size)
    spent = torch.tensor([time.perf_counter() - start, 0.0], dtype=torch.float64)
    data = torch.empty(size, dtype=torch.uint8)
    start = time.perf_counter()
    dist.broadcast(data, src=dist.get_global_rank(_real(group), 0), group=group)
    spent[1] = time.perf_counter() - start
    dist.all_reduce(spent, op=dist.ReduceOp.MAX, group=group)
    return "read" if spent[0] <= spent[1] else "broadcast"


def _broadcast(table: Table, request: Request, group: Any) -> Any:
    """Rank 0 reads, all get the bytes in their own arena, then place and build as alone."""
    (placed,) = placements([table], request)
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
            read.run(table, reads, request.how, memoryview(arena))
        except CheckpointError as error:
            problem = [str(error)]
    dist.broadcast_object_list(problem, src=source, group=group)
    if problem[0] is not None:
        raise CheckpointError(Problem("rank", f"rank 0 could not read: {problem[0]}"))
    flat = torch.frombuffer(arena, dtype=torch.uint8, count=max(size, 1))
    for at in range(0, size, PIECE_BYTES):
        dist.broadcast(flat[at : at + PIECE_BYTES], src=source, group=group)
    memory = _Memory(table, arena, places)
    copy = Table(
        memory, table.index, table.info, table.storages, table.tensors, table.names, table.base
    )
    if all(device == torch.device("cpu") for device in placed.devices) and placed.restore is None:
        cells: dict[int, read.Cell] = {r: (arena, places[r]) for r in rows}
        cells.update({r: (bytearray(), 0) for r in range(len(table.storages)) if r not in cells})
        return _finish(copy, cells, request)
    return content(copy, Placement(placed.devices, placed.restore), request)


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
        return Builder(table, cells, request.extra, request.tensors_only).build(tensors)
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
