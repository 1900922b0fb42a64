"""``device_map="auto"``: fill the devices in turn by what they have free, blocks kept whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from solo._load import memory
from solo._load.errors import CheckpointError, Problem
from solo._load.place import STAYS

if TYPE_CHECKING:
    from solo._load.table import Table

CPU_RESERVE = 1 << 30  # left to the rest of the process


def budgets(max_memory: Mapping[str, int | str] | None) -> dict[str, int]:
    """Bytes by device, in the order in which they are filled."""
    if max_memory is not None:
        return {
            f"cuda:{name}" if isinstance(name, int) else name: memory.parse_bytes(count)
            for name, count in max_memory.items()
        }
    out = {
        f"cuda:{index}": memory.device_free(torch.device("cuda", index))
        for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    }
    out["cpu"] = max(0, memory.host_free() - CPU_RESERVE)
    out["disk"] = 1 << 62
    return out


def block_of(name: str, no_split: Sequence[str] = ()) -> str:
    """The part of a model that stays together: up to the first number (a layer), else the
    first name; a prefix of ``no_split`` always."""
    for prefix in no_split:
        if name == prefix or name.startswith(prefix + "."):
            return prefix
    parts = name.split(".")
    for at, part in enumerate(parts[:-1]):
        if part.isdigit():
            return ".".join(parts[: at + 1])
    return ".".join(parts[:2]) if len(parts) > 2 else parts[0]


def choose(
    tables: Sequence[Table],
    max_memory: Mapping[str, int | str] | None,
    no_split: Sequence[str],
    follows: Sequence[Mapping[str, str]],
) -> dict[str, str | int | torch.device]:
    """A device map for the files of one checkpoint; what an optimizer keeps of a parameter
    counts as part of it (``follows``, see optimizer.py)."""
    sizes: dict[str, int] = {}
    for table, owners in zip(tables, follows, strict=True):
        seen: set[int] = set()
        for name, _, tensor in table.names:
            owner = owners.get(name, name)
            if owner == STAYS:
                continue
            block = block_of(owner, no_split)
            storage = table.tensors[tensor].storage
            count = 0 if storage in seen else table.storages[storage].bytes
            sizes[block] = sizes.get(block, 0) + count
            seen.add(storage)
    return fill(sizes, budgets(max_memory), tables[0].source.name)


def fill(
    sizes: Mapping[str, int], room: dict[str, int], path: str
) -> dict[str, str | int | torch.device]:
    """Blocks in their order onto the devices in theirs; what does not fit any more moves on."""
    names = list(room)
    chosen: dict[str, str | int | torch.device] = {}
    at = 0
    for block, size in sizes.items():
        while at < len(names) and room[names[at]] < size:
            at += 1
        if at == len(names):
            listed = ", ".join(f"{name} {memory.human(left)}" for name, left in room.items())
            raise CheckpointError(
                Problem(
                    "memory",
                    f"{block!r} ({memory.human(size)}) fits nowhere any more; left: {listed}",
                    record=block,
                ),
                path=path,
                fix='give more in max_memory, or add "disk" to it: the rest stays in the file',
            )
        chosen[block] = names[at]
        room[names[at]] -= size
    return chosen
