"""Which tensor goes to which device. Decided, and checked, before any data is read."""

from __future__ import annotations

import difflib
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from solo._load.errors import CheckpointError, Problem, fail

if TYPE_CHECKING:
    from solo._load.table import Table

log = logging.getLogger("solo.load")

Device = str | int | torch.device
MapLocation = None | Device | Mapping[str, Device] | Callable[[Any, str], Any]
DeviceMap = None | Device | Mapping[str, Device]

CPU = torch.device("cpu")
STAYS = ""  # the owner of a step counter of the CPU: it stays there
DISK = "disk"  # left in the file, mapped, read when it is touched
NAMES = ("cpu", "cuda", "meta", "mps", "xpu", "hpu", "mtia")


@dataclass
class Placement:
    """The device of each storage; ``DISK`` for those left in the file.

    Attributes:
        restore: the caller's function, called with each storage and its saved tag, or None.
        notes: what was decided for the caller, to be said once.
    """

    devices: list[torch.device | str]
    restore: Callable[[Any, str], Any] | None = None
    notes: list[str] = field(default_factory=list)


def why_no_cuda() -> str:
    """Why this process sees no CUDA device, in words."""
    if torch.version.cuda is None and torch.version.hip is None:
        return "torch is the CPU build"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES is {visible!r}"
    return "there is no driver, or no device"


def device_of(spec: Device, asked: str = "map_location") -> torch.device:
    """Check one device that the caller named, in what ``asked`` says, and make it exact."""
    if isinstance(spec, int) and not isinstance(spec, bool):
        spec = f"cuda:{spec}"
    try:
        device = torch.device(spec)
    except (RuntimeError, TypeError, ValueError):
        raise _unknown_device(spec) from None
    if device.type == "cuda":
        return _cuda_device(device, asked)
    module = getattr(torch, device.type, None)
    available = getattr(module, "is_available", None)
    if device.type not in ("cpu", "meta") and available is not None and not available():
        raise fail(
            "device",
            f"{device} was asked for, and {device.type} is not available here",
            fix=_instead(asked),
        )
    return device


def _instead(asked: str) -> str:
    """What the caller could have written."""
    return "leave it out of max_memory" if asked == "max_memory" else f"{asked}='cpu'"


def _unknown_device(spec: object) -> CheckpointError:
    text = str(spec)
    name = text.rstrip("0123456789")
    digits = text[len(name) :]
    guesses = difflib.get_close_matches(name.rstrip(":"), NAMES, n=1, cutoff=0.5)
    guess = (
        (guesses[0] if guesses else {"gpu": "cuda"}.get(name.rstrip(":").lower(), ""))
        if name
        else ""
    )
    if name.rstrip(":").lower() == "gpu":
        guess = "cuda"
    hint = f"did you mean {guess + (':' + digits if digits else '')!r}?" if guess else ""
    return fail(
        "device", f"unknown device {text!r}", fix=hint or "use 'cpu', 'cuda', 'cuda:0' or 'meta'"
    )


def _cuda_device(device: torch.device, asked: str) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise fail(
            "device",
            f"{device} was asked for, and this process sees no CUDA device: {why_no_cuda()}",
            fix=_instead(asked),
        )
    index = device.index
    if index is None:
        index = _local_cuda(count)
        log.info("'cuda' is cuda:%d in this process", index)
    if index >= count:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        renumbered = f" (CUDA_VISIBLE_DEVICES={visible} renumbers them from 0)" if visible else ""
        raise fail(
            "device",
            f"cuda:{index} was asked for, and this process sees {count} CUDA devices{renumbered}",
            fix=f"use cuda:0 to cuda:{count - 1}",
        )
    return torch.device("cuda", index)


def _local_cuda(count: int) -> int:
    """ "cuda" without a number: the rank's own under torchrun, else the current one."""
    local = os.environ.get("LOCAL_RANK")
    if local is None or not local.isdigit() or torch.cuda.current_device() != 0 or count == 1:
        return torch.cuda.current_device()
    if int(local) >= count:
        raise fail(
            "device",
            f"LOCAL_RANK is {local}, and this process sees {count} CUDA devices",
            fix="start fewer ranks on this node, or make more devices visible",
        )
    return int(local)


# ---- map_location: as torch has it ----


def by_location(table: Table, map_location: MapLocation, asked: str = "map_location") -> Placement:
    """Place by the tag that each storage was saved with, as ``torch.load`` does."""
    rows = table.storages
    if map_location is None:
        return Placement([CPU] * len(rows), notes=_saved_elsewhere(table))
    if isinstance(map_location, Mapping):
        return _by_tags(table, map_location)
    if callable(map_location) and not isinstance(map_location, (str, int, torch.device)):
        return Placement([CPU] * len(rows), restore=map_location)
    if isinstance(map_location, bytes):
        map_location = map_location.decode()
    if map_location == "saved":
        return _as_saved(table, {})
    if map_location == DISK:
        return Placement([DISK] * len(rows))
    if isinstance(map_location, str) and _registered(map_location):
        tag = map_location
        return Placement([CPU] * len(rows), restore=lambda storage, _: _restore(storage, tag))
    return Placement([device_of(map_location, asked)] * len(rows))


def _registered(tag: str) -> bool:
    """Whether the tag is of a package registered with torch, and no device torch knows."""
    try:
        return torch.device(tag).type not in NAMES
    except RuntimeError:
        registry = getattr(torch.serialization, "_package_registry", [])
        return len(registry) > 8 and tag.split(":")[0].lower() not in ("gpu",)


def _restore(storage: Any, tag: str) -> Any:
    try:
        return torch.serialization.default_restore_location(storage, tag)  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise _unknown_device(tag) from None


def _saved_elsewhere(table: Table) -> list[str]:
    tags = Counter(row.location for row in table.storages if row.location not in ("cpu", "meta"))
    if not tags or torch.cuda.is_available():
        return []
    listed = ", ".join(f"{count} storages on {tag}" for tag, count in sorted(tags.items()))
    return [
        f"{listed} when saved; this process sees no CUDA device ({why_no_cuda()}). "
        "Loaded to the CPU. map_location='cuda' requires a GPU."
    ]


def _by_tags(table: Table, wanted: Mapping[str, Device]) -> Placement:
    saved = {row.location for row in table.storages}
    strange = [key for key in wanted if key not in saved and not _looks_like_tag(key)]
    if strange:
        names = [name.name for name in table.names]
        prefixes = {name[:i] for name in names[:5000] for i, c in enumerate(name) if c == "."}
        near = difflib.get_close_matches(str(strange[0]), sorted(prefixes | saved), n=3, cutoff=0.4)
        raise fail(
            "device",
            f"map_location has the key {strange[0]!r}, and its keys are the devices that tensors "
            f"were saved on (here: {', '.join(sorted(saved)) or 'none'})",
            path=table.source.name,
            fix=f"to place modules use device_map={{{strange[0]!r}: ...}}"
            + (f"; near names: {', '.join(near)}" if near else ""),
        )
    return _as_saved(table, wanted)


def _looks_like_tag(key: object) -> bool:
    try:
        torch.device(key)  # type: ignore[call-overload]
    except (RuntimeError, TypeError):
        return False
    return True


def _as_saved(table: Table, renamed: Mapping[str, Device]) -> Placement:
    """Each storage where it was saved, or where ``renamed`` sends its tag; an index that is
    not here goes to one that is, with a note: files move between machines."""
    cache: dict[str, torch.device] = {}
    notes: list[str] = []
    for tag in {row.location for row in table.storages}:
        if tag in renamed:
            cache[tag] = device_of(renamed[tag], f"map_location[{tag!r}]")
            continue
        cache[tag], note = _here(tag)
        if note:
            count = sum(row.location == tag for row in table.storages)
            notes.append(f"{count} storages were saved on {tag}, {note}")
    return Placement([cache[row.location] for row in table.storages], notes=notes)


def _here(tag: str) -> tuple[torch.device, str]:
    try:
        device = torch.device(tag)
    except RuntimeError:
        return CPU, "which this torch does not know: loaded to the CPU"
    if device.type in ("cpu", "meta"):
        return device, ""
    if device.type != "cuda" or not torch.cuda.is_available():
        reason = why_no_cuda() if device.type == "cuda" else "not available"
        return CPU, f"which is not here ({reason}): loaded to the CPU"
    count = torch.cuda.device_count()
    index = device.index or 0
    if index < count:
        return torch.device("cuda", index), ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    return (
        torch.device("cuda", index % count),
        f"this process sees {count} devices (CUDA_VISIBLE_DEVICES {visible}): "
        f"loaded to cuda:{index % count}",
    )


# ---- device_map: by the names of modules ----


def by_names(
    tables: Sequence[Table],
    device_map: Mapping[str, Device],
    follows: Sequence[Mapping[str, str]],
    asked: str = "",
) -> list[Placement]:
    """Place by module prefix: the longest that fits wins, ``""`` is the rest. The state of an
    optimizer goes where its parameter goes (``follows``, see optimizer.py), unless a key names it.

    The files of one checkpoint are judged together: a key must fit a tensor of one of them.
    """
    wanted: dict[str, torch.device | str] = {}
    for prefix, spec in device_map.items():
        word = asked or f"device_map[{prefix!r}]"
        wanted[prefix] = DISK if spec == DISK else device_of(spec, word)
    used: set[str] = set()
    uncovered: list[str] = []
    placements = []
    for table, owners in zip(tables, follows, strict=True):
        devices: list[torch.device | str | None] = [None] * len(table.storages)
        begins = {name.name: name.key_at for name in table.names} if owners else {}
        for name, key_at, tensor in table.names:
            key = _longest(name, key_at, wanted)
            if not key and name in owners:  # no key names it: with its parameter
                owner = owners[name]
                if owner == STAYS:
                    devices[table.tensors[tensor].storage] = CPU
                    continue
                key = _longest(owner, begins[owner], wanted)
            if key is None:
                uncovered.append(name)
                continue
            used.add(key)
            storage = table.tensors[tensor].storage
            if devices[storage] is None:  # tied tensors stay tied: the first name decides
                devices[storage] = wanted[key]
        rest = wanted.get("", CPU)
        placements.append(Placement([rest if device is None else device for device in devices]))
    problems = [
        *_unused(tables, [p for p in wanted if p not in used and p]),
        *_uncovered(uncovered),
    ]
    if problems:
        raise CheckpointError(
            problems,
            path=tables[0].source.name,
            fix='name every part once; the key "" takes whatever is left',
        )
    return placements


def _longest(name: str, key_at: int, wanted: Mapping[str, object]) -> str | None:
    """The longest key that is a module prefix of the name, in the object or in its own dict."""
    best: str | None = "" if "" in wanted else None
    for text in (name, name[key_at:]) if key_at else (name,):
        at = len(text)
        while at > 0:
            if text[:at] in wanted and (best is None or at > len(best)):
                best = text[:at]
                break
            at = text.rfind(".", 0, at)
    return best


def _unused(tables: Sequence[Table], keys: list[str]) -> list[Problem]:
    if not keys:
        return []
    names = [name.name for table in tables for name in table.names[:20000]]
    known = sorted({n[:i] for n in names for i, c in enumerate(n) if c == "."} | set(names))
    problems = []
    for key in keys:
        near = difflib.get_close_matches(key, known, n=3, cutoff=0.4)
        hint = f"; near: {', '.join(near)}" if near else ""
        problems.append(
            Problem("device_map", f"{key!r} is a prefix of no tensor{hint}", record=key)
        )
    return problems


def _uncovered(names: list[str]) -> list[Problem]:
    """By the module they are in, two names deep at most."""
    groups = Counter(".".join(name.split(".")[:-1][:2]) or name for name in names)
    problems = []
    for group, count in groups.items():
        have = "1 tensor under {} has" if count == 1 else f"{count} tensors under {{}} have"
        text = f"{have.format(repr(group))} no device"
        problems.append(Problem("device_map", text, record=group))
    return problems
