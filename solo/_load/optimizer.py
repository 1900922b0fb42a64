"""Which parameter an optimizer's tensor belongs to: a device map sends both to one place.

A state_dict of torch.optim numbers the parameters and does not name them, unless the optimizer
was given names. The numbers follow the order of the groups, and within a group that of the
model, so that sizes tell which is meant. Where they do not, the tensor stays without an owner
and the device map must name it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from solo._load.objects import Builder, Placeholder
from solo._load.place import STAYS
from solo._load.table import Table, dtypes

DEPTH_MAX = 200  # as deep as the judge lets a pickle be
NO_PARAMETER = ("running_mean", "running_var")  # buffers that have a parameter's size


@dataclass(frozen=True)
class Leaf:
    """A tensor of the file, without its data."""

    name: str
    sizes: tuple[int, ...]
    on_cpu: bool
    floating: bool


@dataclass
class _Found:
    """What an object holds: dicts of named tensors, and optimizers, each with its path."""

    models: list[tuple[tuple[str, ...], dict[str, Leaf]]] = field(default_factory=list)
    optimizers: list[tuple[tuple[str, ...], dict[str, Any]]] = field(default_factory=list)


def owners_in(table: Table) -> dict[str, str]:
    """Names of optimizer tensors to the name of their parameter, or to ``STAYS``."""
    if table.chunks is not None:
        found: dict[str, str] = table.chunks.owners()
        return found
    if not table.has_object or not any(".state." in f".{n.name}" for n in table.names):
        return {}
    names: dict[int, str] = {}
    for name in table.names:
        names.setdefault(name.tensor, name.name)
    known = dtypes()
    leaves: list[Any] = [None] * len(table.tensors)
    for row, name_of in names.items():
        tensor = table.tensors[row]
        dtype = known[tensor.dtype]
        leaves[row] = Leaf(
            name_of,
            tensor.sizes,
            table.storages[tensor.storage].location == "cpu",
            dtype is not None and dtype.is_floating_point,
        )
    return owners(_Skeleton(table).build(leaves))


def owners(obj: Any) -> dict[str, str]:
    """The same for an object whose tensors are ``Leaf``."""
    found = _Found()
    _walk(obj, (), found, set(), DEPTH_MAX)
    out: dict[str, str] = {}
    for path, optimizer in found.optimizers:
        assigned = _assigned(path, optimizer, found)
        for key, values in optimizer["state"].items():
            for kind, leaf in values.items() if isinstance(values, dict) else ():
                if isinstance(leaf, Leaf) and kind == "step" and leaf.on_cpu:
                    out[leaf.name] = STAYS
                elif isinstance(leaf, Leaf) and key in assigned:
                    out[leaf.name] = assigned[key]
    return out


class _Skeleton(Builder):
    """The containers of a file round its leaves; nothing else is made."""

    def __init__(self, table: Table) -> None:
        super().__init__(table, {}, {}, True)

    def storage(self, row: int, first: int, count: int) -> Any:
        return Placeholder("storage")

    def call(self, name: str, args: tuple[Any, ...], created: bool) -> Any:
        if name in ("collections.OrderedDict", "collections.Counter", "collections.defaultdict"):
            return {}
        inner = args[2] if name.endswith("._rebuild_from_type_v2") and len(args) > 2 else None
        inner = args[0] if name.startswith("torch._utils._rebuild_parameter") else inner
        return inner if isinstance(inner, Leaf) else Placeholder(name, args)

    def state(self, made: Any, name: str, state: Any) -> None:
        if isinstance(made, Placeholder):
            made.state = state


def _walk(obj: Any, path: tuple[str, ...], found: _Found, seen: set[int], depth: int) -> None:
    if depth == 0 or id(obj) in seen or not isinstance(obj, (dict, list, tuple)):
        return
    seen.add(id(obj))
    if not isinstance(obj, dict):
        for number, value in enumerate(obj):
            _walk(value, (*path, str(number)), found, seen, depth - 1)
        return
    if isinstance(obj.get("state"), dict) and isinstance(obj.get("param_groups"), list):
        found.optimizers.append((path, obj))
        return
    named = {str(key): leaf for key, leaf in obj.items() if isinstance(leaf, Leaf)}
    if named:
        found.models.append((path, named))
    for key, value in obj.items():
        _walk(value, (*path, str(key)), found, seen, depth - 1)


def _leaves(values: Mapping[Any, Any]) -> Iterator[Leaf]:
    return (leaf for leaf in values.values() if isinstance(leaf, Leaf))


def _assigned(path: tuple[str, ...], optimizer: dict[str, Any], found: _Found) -> dict[Any, str]:
    """Keys of the optimizer's state to parameters, by the model that fits it best."""
    best: dict[Any, str] = {}
    nearest = sorted(found.models, key=lambda m: (m[0][: len(path) - 1] != path[:-1], -len(m[1])))
    for _, model in nearest:
        names = _by_name(optimizer, model) or _by_order(optimizer, model)
        if len(names) > len(best):
            best = names
        if len(best) == len(optimizer["state"]):
            break
    return best


def _groups(optimizer: dict[str, Any]) -> list[dict[str, Any]]:
    return [g for g in optimizer["param_groups"] if isinstance(g, dict)]


def _by_name(optimizer: dict[str, Any], model: Mapping[str, Leaf]) -> dict[Any, str]:
    """From optimizers that know names: as keys of the state, or beside the numbers."""
    out = {key: model[key].name for key in optimizer["state"] if key in model}
    for group in _groups(optimizer):
        keys, names = group.get("params"), group.get("param_names")
        if isinstance(keys, list) and isinstance(names, list) and len(keys) == len(names):
            pairs = zip(keys, names, strict=True)
            out.update({k: model[n].name for k, n in pairs if _is_key(k) and n in model})
    return out


def _is_key(key: Any) -> bool:
    return isinstance(key, (int, str))


def _by_order(optimizer: dict[str, Any], model: Mapping[str, Leaf]) -> dict[Any, str]:
    """By the order of the groups and of the model; a size that does not fit is passed over."""
    left = list(
        dict.fromkeys(
            leaf
            for name, leaf in model.items()
            if leaf.floating and name.rpartition(".")[2] not in NO_PARAMETER
        )
    )
    out: dict[Any, str] = {}
    for group in _groups(optimizer):
        keys = group.get("params")
        at = 0
        for key in keys if isinstance(keys, list) else ():
            sizes = _sizes(optimizer["state"].get(key)) if _is_key(key) else None
            if sizes is None:
                continue  # a parameter that never had a gradient: it owns nothing here
            place = _next(left, sizes, at)
            if place is not None:
                out[key] = left.pop(place).name
                at = place
    return out


def _sizes(values: Any) -> tuple[int, ...] | None:
    """The parameter's size: that of its largest state."""
    sizes = [leaf.sizes for leaf in _leaves(values)] if isinstance(values, dict) else []
    return max(sizes, key=lambda s: (len(s), s), default=None)


def _next(left: Sequence[Leaf], sizes: tuple[int, ...], at: int) -> int | None:
    return next((i for i in range(at, len(left)) if left[i].sizes == sizes), None)
