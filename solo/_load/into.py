"""A checkpoint straight into tensors that are there already."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from solo._load import boxes, collection, distributed, ranks, read
from solo._load.errors import CheckpointError, Problem, fail
from solo._load.place import CPU, Placement
from solo._load.single import Request, convert, prepare
from solo._load.table import Table, dtypes

if TYPE_CHECKING:
    from solo._load.paths import Where
    from solo._load.source import Read

log = logging.getLogger("solo.load")

WRAPPERS = ("", "module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod.")
STAGED_BYTES = 64 << 20  # host memory for what cannot be read in place


@dataclass
class Report:
    """What ``load_into`` did.

    Attributes:
        loaded: names that were loaded.
        missing: names of the target that the checkpoint lacks (``strict=False``).
        unexpected: names of the checkpoint that the target lacks (``strict=False``).
        stripped: the prefix that was taken off the file's names (or ``-`` and the target's).
        in_place: bytes that were read directly into the target.
        staged: bytes that went through a buffer (other dtype, layout or device).
        still_meta: parameters and buffers of the module that have no data yet.
    """

    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    stripped: str = ""
    in_place: int = 0
    staged: int = 0
    still_meta: list[str] = field(default_factory=list)


@dataclass
class Pair:
    """A tensor of the target and the row of a table that it takes."""

    name: str
    target: torch.Tensor
    table: Table
    row: int


def load_into(
    target: Any,
    where: Where,
    request: Request,
    *,
    strict: bool,
    strip_prefix: str | None,
    group: Any = None,
) -> Report:
    tensors = targets(target)
    tables = (
        collection.open_tables(where, request)
        if group is None
        else ranks.same_file(where, request, group)
    )
    report = Report()
    names, report.stripped = match(tables, tensors, strip_prefix)
    pairs = [Pair(name, tensor, *names[name]) for name, tensor in tensors.items() if name in names]
    pairs += _tied_to(pairs, tensors)
    _compare(report, tensors, names, pairs, tables, strict)
    placed = _place_fresh(tables, pairs, request)
    for table, placement in zip(tables, placed, strict=True):
        own = [p for p in pairs if p.table is table]
        _load_table(target, table, own, placement, request, report)
    report.loaded = [pair.name for pair in pairs]
    if isinstance(target, torch.nn.Module):
        everything = [*target.named_parameters(), *target.named_buffers()]
        report.still_meta = [name for name, tensor in everything if tensor.is_meta]
    return report


def targets(target: Any) -> dict[str, torch.Tensor]:
    """The tensors of a module (what its state_dict names) or of a mapping, by name."""
    if isinstance(target, torch.nn.Module):
        items: Mapping[str, Any] = target.state_dict(keep_vars=True)
    elif isinstance(target, Mapping):
        items = target
    else:
        raise fail("argument", f"a module or a dict is expected, not {type(target).__name__}")
    tensors = {name: value for name, value in items.items() if isinstance(value, torch.Tensor)}
    problems = [
        Problem("argument", f"{name!r} {wrong}", record=str(name))
        for name, value in tensors.items()
        if (wrong := _unfillable(value))
    ]
    if problems:
        raise CheckpointError(problems, fix="load(path) gives tensors of their own")
    return tensors


def _unfillable(tensor: torch.Tensor) -> str:
    """Why a tensor cannot be written to as it is; "" if it can."""
    if torch.nn.parameter.is_lazy(tensor):
        return "has no shape yet: call the lazy module on a batch first"
    if tensor.layout != torch.strided or tensor.is_nested:
        return f"has the layout {'nested' if tensor.is_nested else tensor.layout}"
    if boxes.is_distributed(tensor):
        return ""
    if tensor.is_quantized:
        return f"is quantized ({tensor.dtype})"
    reach = 0  # of the axes so far: each further one must step over it
    for step, n in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if n > 1 and step <= reach and tensor.numel():
            return "is expanded: several of its elements are one in memory"
        reach += (n - 1) * step
    return "" if tensor.is_meta or _has_memory(tensor) else "has no memory of its own"


def _has_memory(tensor: torch.Tensor) -> bool:
    """Not of tensors that only stand for others: fake ones, those inside torch.vmap."""
    try:
        return tensor.data_ptr() != 0 or not tensor.numel()
    except RuntimeError:
        return False


# ---- names ----


def match(
    tables: list[Table], tensors: Mapping[str, torch.Tensor], strip: str | None
) -> tuple[dict[str, tuple[Table, int]], str]:
    """Names of the target to rows. The file may nest the weights in a dict ("model",
    "state_dict"), and either side may carry the prefix of a wrapper."""
    groups: dict[str, dict[str, tuple[Table, int]]] = {}
    for table in tables:
        for name, key_at, row in table.names:
            groups.setdefault(name[:key_at], {})[name[key_at:]] = (table, row)
            if key_at:
                groups.setdefault("", {}).setdefault(name, (table, row))
    best: tuple[int, dict[str, tuple[Table, int]], str] = (-1, {}, "")
    for group in groups.values():
        for prefix in WRAPPERS if strip is None else (strip,):
            renamed = {n.removeprefix(prefix): v for n, v in group.items()}
            for own in WRAPPERS if prefix == "" and strip is None else ("",):
                count = sum(name.removeprefix(own) in renamed for name in tensors)
                if count > best[0]:
                    known = {
                        n: renamed[n.removeprefix(own)]
                        for n in tensors
                        if n.removeprefix(own) in renamed
                    }
                    rest = {
                        n: v
                        for n, v in renamed.items()
                        if n not in {k.removeprefix(own) for k in known}
                    }
                    best = (count, {**known, **rest}, prefix or (f"-{own}" if own else ""))
    return best[1], best[2]


def _tied_to(pairs: list[Pair], tensors: Mapping[str, torch.Tensor]) -> list[Pair]:
    """Other names of parameters on meta, which the file has under one name only: whatever takes
    the place of one must take that of all."""
    first = {id(pair.target): pair for pair in pairs if pair.target.is_meta}
    known = {pair.name for pair in pairs}
    return [
        Pair(name, tensor, first[id(tensor)].table, first[id(tensor)].row)
        for name, tensor in tensors.items()
        if name not in known and id(tensor) in first
    ]


def _compare(
    report: Report,
    tensors: Mapping[str, torch.Tensor],
    names: Mapping[str, object],
    pairs: list[Pair],
    tables: list[Table],
    strict: bool,
) -> None:
    held = {_place(pair.target) for pair in pairs}
    report.missing = [n for n, t in tensors.items() if n not in names and _place(t) not in held]
    report.unexpected = [name for name in names if name not in tensors]
    problems = [
        Problem(
            "shape",
            f"{p.name!r} is {tuple(p.target.shape)} in the target and "
            f"{p.table.tensors[p.row].sizes} in the file",
            record=p.name,
        )
        for p in pairs
        if tuple(p.target.shape) != p.table.tensors[p.row].sizes
    ]
    if strict:
        problems += _listed("missing", "the file lacks", report.missing)
        problems += _listed("unexpected", "the target lacks", report.unexpected)
    if problems:
        raise CheckpointError(
            problems,
            path=tables[0].source.name if len(tables) == 1 else "",
            fix="strict=False leaves missing and unexpected names alone; strip_prefix= renames",
        )


def _place(tensor: torch.Tensor) -> object:
    """What tied tensors have in common."""
    if boxes.is_distributed(tensor):
        return id(tensor)
    return id(tensor) if tensor.is_meta else (tensor.data_ptr(), tensor.shape)


def _listed(code: str, words: str, names: list[str]) -> list[Problem]:
    if not names:
        return []
    groups = Counter(".".join(name.split(".")[:2]) for name in names)
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    under = ", ".join(f"{g} ({c})" for g, c in groups.most_common(4)) if len(names) > 8 else ""
    return [
        Problem(
            code, f"{words} {len(names)} names: {shown}" + (f"; under {under}" if under else "")
        )
    ]


# ---- data ----


def _place_fresh(tables: list[Table], pairs: list[Pair], request: Request) -> list[Placement]:
    """What has no memory yet is placed, and must fit, before anything is read."""
    new = [p for p in pairs if p.target.is_meta and not boxes.is_distributed(p.target)]
    fresh = {id(table): {p.row for p in new if p.table is table} for table in tables}
    if not any(fresh.values()):
        return [Placement([CPU] * len(table.storages)) for table in tables]
    request.storages = {id(table): read.storages_of(table, fresh[id(table)]) for table in tables}
    return prepare(tables, request)


def _load_table(
    target: Any,
    table: Table,
    pairs: list[Pair],
    placed: Placement,
    request: Request,
    report: Report,
) -> None:
    parts = [p for p in pairs if boxes.is_distributed(p.target)]
    for pair in parts:
        _fill_part(target, pair, request, report)
    pairs = [p for p in pairs if not boxes.is_distributed(p.target)]
    fresh = [p for p in pairs if p.target.is_meta]
    direct = [p for p in pairs if not p.target.is_meta and _fits(p)]
    chosen = {id(p) for p in (*fresh, *direct)}
    if fresh:
        _replace(target, table, fresh, placed, request)
    reads = []
    for pair in direct:
        row = table.tensors[pair.row]
        storage = table.storages[row.storage]
        size = pair.target.numel() * pair.target.element_size()
        start = storage.offset + row.first * pair.target.element_size()
        reads.append((start, size, pair.target.data_ptr(), row.storage))
        report.in_place += size
        torch.autograd.graph.increment_version(pair.target)
    for batch in _apart(reads):
        read.run(table, batch, request.how)
    _stage(table, [p for p in pairs if id(p) not in chosen], request, report)


def _apart(reads: list[Read]) -> list[list[Read]]:
    """All at once; one by one where two fill the same memory (tied in the target and not in the
    file): the last one counts, as in load_state_dict."""
    reads = list(dict.fromkeys(reads))
    end = 0
    for _, size, address, _ in sorted(reads, key=lambda one: one[2]):
        if address < end:
            log.warning("two tensors of the file fill one of the target: the last one counts")
            return [[one] for one in reads]
        end = address + size
    return [reads] if reads else []


def _fill_part(target: Any, pair: Pair, request: Request, report: Report) -> None:
    """A distributed tensor: this rank's part of it."""
    filled, direct = distributed.fill(pair.target, pair.name, pair.table, pair.row, request.how)
    if filled is not pair.target:
        _put(target, pair.name, filled)
    size = filled.to_local().nbytes
    report.in_place += size if direct else 0
    report.staged += 0 if direct else size


def _fits(pair: Pair) -> bool:
    """Whether the file's bytes are the target's bytes."""
    row = pair.table.tensors[pair.row]
    storage = pair.table.storages[row.storage]
    return (
        pair.target.device == CPU
        and not pair.target.is_neg()
        and not pair.target.is_conj()
        and pair.target.is_contiguous()
        and bool(row.contiguous)
        and not row.metadata
        and not pair.table.info["big_endian"]
        and storage.packed == storage.bytes
        and dtypes()[row.dtype] == pair.target.dtype
        and pair.target.layout == torch.strided
    )


def _stage(table: Table, pairs: list[Pair], request: Request, report: Report) -> None:
    """Through the host in batches; what is read is copied before the next batch is read."""
    by_storage: dict[int, list[Pair]] = {}
    for pair in pairs:
        by_storage.setdefault(table.tensors[pair.row].storage, []).append(pair)
    rows = sorted(by_storage, key=lambda r: table.storages[r].offset)
    placed = Placement([CPU] * len(table.storages))
    for batch in read.batches(table, rows, STAGED_BYTES):
        cells = read.read_storages(table, placed, batch, request.how)
        wanted = [pair for row in batch for pair in by_storage[row]]
        made = read.make_tensors(table, cells, [pair.row for pair in wanted])
        with torch.no_grad():
            for pair in wanted:
                pair.target.copy_(made[pair.row])
                report.staged += pair.target.numel() * pair.target.element_size()


def _replace(
    target: Any, table: Table, pairs: list[Pair], placed: Placement, request: Request
) -> None:
    """New tensors in the place of those on meta; tied ones stay tied."""
    rows = sorted({pair.row for pair in pairs})
    cells = read.read_storages(table, placed, read.storages_of(table, rows), request.how)
    made = read.make_tensors(table, cells, rows)
    convert(made, request.dtype) if request.dtype is not None else None
    known: dict[int, torch.Tensor] = {}
    for pair in pairs:
        new = known.get(id(pair.target))
        if new is None:
            new = made[pair.row].detach()
            if request.dtype is None and new.dtype != pair.target.dtype:
                new = new.to(pair.target.dtype)
            if isinstance(pair.target, torch.nn.Parameter):
                new = torch.nn.Parameter(new, requires_grad=pair.target.requires_grad)
            known[id(pair.target)] = new
        _put(target, pair.name, new)


def _put(target: Any, name: str, value: torch.Tensor) -> None:
    if not isinstance(target, torch.nn.Module):
        target[name] = value
        return
    *parents, leaf = name.split(".")
    module = target.get_submodule(".".join(parents))
    if leaf in module._parameters:
        module._parameters[leaf] = value  # type: ignore[assignment]
    else:
        module._buffers[leaf] = value
