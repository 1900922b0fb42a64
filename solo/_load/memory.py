"""What memory is needed and what is free, asked before the first byte is read."""

from __future__ import annotations

import os
import pathlib
import re
from typing import TYPE_CHECKING

import torch

from solo._load.errors import CheckpointError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from solo._load.ledger import Book

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
RESERVE = 1 << 30  # of a GPU: context, workspaces, fragments
CGROUP = pathlib.Path("/sys/fs/cgroup")


def parse_bytes(value: int | str) -> int:
    """``"8GiB"``, ``"500M"``, ``1000``: bytes; units are powers of 1024."""
    if isinstance(value, int) and value >= 0:
        return value
    match = re.fullmatch(r"\s*(\d+\.?\d*)\s*([kmgt]?)i?b?\s*", str(value).lower())
    if not match or isinstance(value, float):
        raise CheckpointError(
            Problem("argument", f"{value!r} is not a size"), fix="write it like '8GiB' or '500M'"
        )
    return int(float(match[1]) * UNITS[match[2]])


def human(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def count_of(count: int, noun: str) -> str:
    """``"1 tensor"``, ``"2 tensors"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def host_free() -> int:
    """Bytes that this process can still get: the machine's, or its container's if less."""
    free = 1 << 62
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    return min(free, _cgroup_free())


def _cgroup_free() -> int:
    """What the container's limit leaves; its reclaimable page cache counts as free."""
    for limit_name, usage_name in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit = (CGROUP / limit_name).read_text().strip()
            usage = int((CGROUP / usage_name).read_text())
        except (OSError, ValueError):
            continue
        if limit.isdigit() and int(limit) < 1 << 60:
            return max(0, int(limit) - usage + _cgroup_cache(usage_name))
    return 1 << 62


def _cgroup_cache(usage_name: str) -> int:
    try:
        text = (CGROUP / usage_name).with_name("memory.stat").read_text()
    except OSError:
        return 0
    match = re.search(r"^(?:total_)?inactive_file (\d+)", text, re.MULTILINE)
    return int(match[1]) if match else 0


def device_free(device: torch.device) -> int:
    """Bytes that a load may take there; what torch has cached and not given out counts as free."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return max(0, free + cached - RESERVE)
    if device.type == "cpu":
        return host_free()
    return 1 << 62


def check(
    needed: Mapping[str, int],
    *,
    path: str,
    memory_limit: int | str | None = None,
    gpu_memory_limit: int | str | None = None,
    book: Book | None = None,
) -> None:
    """Raise if a device cannot take its part, with what is needed and what there is.

    Args:
        needed: bytes by device name; ``"disk"`` and ``"meta"`` need none.
        path: for the message.
        memory_limit: bytes this load may take of the host; default ``SOLO_MEMORY``, else all.
        gpu_memory_limit: the same of each GPU.
        book: what other processes have promised themselves is not free for this one.
    """
    limit = memory_limit if memory_limit is not None else os.environ.get("SOLO_MEMORY") or None
    problems = []
    for name, count in needed.items():
        if name in ("disk", "meta") or not count:
            continue
        device = torch.device(name)
        own = limit if device.type == "cpu" else gpu_memory_limit
        free = max(0, device_free(device) - _taken(book, device))
        allowed = free if own is None else min(free, parse_bytes(own))
        if count > allowed:
            cause = "are free" if own is None or free <= allowed else "are allowed"
            have, need = human(allowed), human(count)
            if have == need:
                have, need = f"{allowed} bytes", f"{count} bytes"
            problems.append(Problem("memory", f"{name} needs {need}, {have} {cause}", record=name))
    holders = book.lines() if book is not None and problems else []
    problems += [Problem("memory", f"beside it, {line}") for line in holders]
    if problems:
        raise CheckpointError(
            problems,
            path=path,
            fix="place a part elsewhere with device_map, leave it in the file with mode='mmap', "
            "or load less with only=",
        )


def _taken(book: Book | None, device: torch.device) -> int:
    """Bytes there that other loads of this host have promised themselves and not taken yet."""
    if book is None:
        return 0
    return book.outstanding() if device.type == "cpu" else book.outstanding_on(physical(device))


def physical(device: torch.device | str) -> str:
    """What tells one GPU of a host from another, whatever number a process has for it."""
    device = torch.device(device)
    if device.type != "cuda" or not torch.cuda.is_available():
        return str(device)
    return str(torch.cuda.get_device_properties(device).uuid)


def report(needed: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Bytes by device: of this checkpoint, and free now."""
    out = {}
    for name, count in needed.items():
        free = 0 if name == "disk" else device_free(torch.device(name))
        out[name] = {"loaded": count, "free": free if free < 1 << 62 else 0}
    return out
