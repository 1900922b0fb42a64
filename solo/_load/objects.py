"""The object round the tensors: what the few names in a checkpoint may become.

``_C`` makes dicts, lists, numbers and text by itself; here are the rest: torch's own rebuild
functions for unusual tensors, and a handful of plain types. Nothing is looked up by a name
from the file in any other place than the tables below.
"""

from __future__ import annotations

import _compat_pickle
import collections
import functools
import json
import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from solo._load.errors import CheckpointError, fail
from solo._load.read import Cell, untyped
from solo._load.table import Table, dtype_names, torch_dtype

if TYPE_CHECKING:
    from typing import TypeAlias

    SafeGlobals: TypeAlias = Sequence[Any]

BYTES_MAX = 1 << 30  # of one bytes or bytearray made by a call


class Placeholder:
    """Something in the file that is neither tensor nor plain data; nothing of it was run.

    Attributes:
        name: "module.name" as the file says.
        args: what it would have been called with; None for a bare name.
        state: its state, if the file has one.
        items: what was appended or set on it.
    """

    def __init__(self, name: str, args: tuple[Any, ...] | None = None) -> None:
        self.name = name
        self.args = args
        self.state: Any = None
        self.items: list[Any] = []

    def append(self, item: Any) -> None:
        self.items.append(item)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def __repr__(self) -> str:
        return f"<placeholder of {self.name}>"

    def __hash__(self) -> int:
        return id(self)


def _counter(*args: Any) -> collections.Counter[Any]:
    return collections.Counter(*(dict(a) for a in args if isinstance(a, Mapping)))


def _bytearray(*args: Any) -> bytearray:
    if len(args) == 2 and isinstance(args[0], str) and args[1] in ("latin-1", "latin1"):
        return bytearray(args[0], "latin-1")
    if not args or (len(args) == 1 and isinstance(args[0], (bytes, bytearray, list))):
        return bytearray(*args)
    raise ValueError("a bytearray is made from something that is not bytes")


def _bytes(*args: Any) -> bytes:
    if args:
        raise ValueError("bytes are made from something unusual")
    return b""


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", "utf-8", "ascii"):
        raise ValueError("text is encoded in an unusual way")
    return text.encode(encoding)


def _complex(real: Any, imaginary: Any) -> complex:
    return complex(float(real), float(imaginary))


def _set(items: Any = ()) -> set[Any]:
    return set(items if isinstance(items, (list, tuple)) else ())


def _device(*args: Any) -> torch.device:
    if not all(isinstance(a, (str, int)) for a in args):
        raise ValueError("a device is made from something unusual")
    return torch.device(*args)


def _parameter(data: torch.Tensor, requires_grad: bool = True, hooks: Any = None) -> Any:
    return torch.nn.Parameter(data, bool(requires_grad))


def _parameter_with_state(data: torch.Tensor, grad: bool, hooks: Any, state: Any) -> Any:
    return _with_state(torch.nn.Parameter(data, bool(grad)), state)


def _with_state(tensor: Any, state: Any) -> Any:
    """Attributes that a tensor had when saved; only names of attributes, nothing special."""
    slots = None
    if isinstance(state, tuple) and len(state) == 2:
        state, slots = state
    for values in (state, slots):
        if not values:
            continue
        if not isinstance(values, dict) or any(
            not isinstance(key, str) or key.startswith("__") for key in values
        ):
            raise ValueError("a tensor has a state that is not plain attributes")
        for key, value in values.items():
            setattr(tensor, key, value)
    return tensor


def _subclass(function: Any, kind: Any, inner: Any, state: Any) -> Any:
    """A tensor subclass, or a tensor with attributes; the tensor itself is there already."""
    tensor = inner if isinstance(inner, torch.Tensor) else function(*inner)
    if isinstance(kind, type) and type(tensor) is not kind:
        tensor = tensor.as_subclass(kind)
    return _with_state(tensor, state)


def _moved(
    data: torch.Tensor, dtype: torch.dtype, device: Any, requires_grad: bool
) -> torch.Tensor:
    """A tensor of a device without storages: it stays where the loader put its data."""
    tensor = data.to(dtype=dtype)
    return tensor.requires_grad_(bool(requires_grad))


def _nested(buffer: torch.Tensor, sizes: Any, strides: Any, offsets: Any) -> torch.Tensor:
    """A nested tensor, its parts checked against the buffer first."""
    for size, stride, offset in zip(
        sizes.tolist(), strides.tolist(), offsets.tolist(), strict=True
    ):
        reach = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        if min([offset, *size, *stride]) < 0 or (all(size) and reach >= buffer.numel()):
            raise ValueError("a nested tensor reaches beyond its data")
    return torch._nested_view_from_buffer(buffer, sizes, strides, offsets)


def _wrapper(
    kind: Any, dtype: Any, size: Any, stride: Any, offset: Any, layout: Any, device: Any, grad: Any
) -> torch.Tensor:
    made: torch.Tensor = torch.Tensor._make_wrapper_subclass(
        kind,
        size,
        strides=stride,
        dtype=dtype,
        storage_offset=offset,
        layout=layout,
        device=torch.device("cpu"),
        requires_grad=grad,
    )
    return made


@functools.cache
def _known() -> dict[str, Callable[..., Any]]:
    from torch import _utils

    return {
        "collections.OrderedDict": collections.OrderedDict,
        "collections.Counter": _counter,
        "builtins.bytearray": _bytearray,
        "builtins.bytes": _bytes,
        "builtins.set": _set,
        "builtins.complex": _complex,
        "_codecs.encode": _encode,
        "torch.Size": torch.Size,
        "torch.device": _device,
        "torch.serialization._get_layout": torch.serialization._get_layout,
        "torch.nn.parameter.Parameter": _parameter,
        "torch._utils._rebuild_parameter": _parameter,
        "torch._utils._rebuild_parameter_with_state": _parameter_with_state,
        "torch._tensor._rebuild_from_type_v2": _subclass,
        "torch._utils._rebuild_qtensor": _utils._rebuild_qtensor,
        "torch._utils._rebuild_sparse_tensor": _utils._rebuild_sparse_tensor,
        "torch._utils._rebuild_meta_tensor_no_storage": _utils._rebuild_meta_tensor_no_storage,
        "torch._utils._rebuild_nested_tensor": _nested,
        "torch._utils._rebuild_wrapper_subclass": _wrapper,
        "torch._utils._rebuild_device_tensor_from_cpu_tensor": _moved,
        "torch._utils._rebuild_device_tensor_from_numpy": _moved,
    }


@functools.cache
def _values() -> dict[str, Any]:
    """Names that stand for a value and are not called."""
    out: dict[str, Any] = {
        "torch.Tensor": torch.Tensor,
        "torch.nn.parameter.Parameter": torch.nn.Parameter,
        "collections.OrderedDict": collections.OrderedDict,
        # beside a tensor that is made already: they are not called
        "torch._utils._rebuild_tensor": None,
        "torch._utils._rebuild_tensor_v2": None,
        "torch._utils._rebuild_tensor_v3": None,
    }
    for number, name in enumerate(dtype_names()):
        if hasattr(torch, name):
            out[f"torch.{name}"] = torch_dtype(number, "")
    for scheme in (
        "per_tensor_affine",
        "per_tensor_symmetric",
        "per_channel_affine",
        "per_channel_symmetric",
        "per_channel_affine_float_qparams",
    ):
        out[f"torch.{scheme}"] = getattr(torch, scheme)
    return out


class Anything(Mapping[str, Any]):
    """Every name that can be imported: for ``weights_only=False`` alone."""

    def __getitem__(self, name: str) -> Any:
        module, _, rest = name.partition(".")
        renamed = _compat_pickle.IMPORT_MAPPING.get(module, module)
        try:
            return pkgutil.resolve_name(f"{renamed}.{rest}")
        except (ImportError, AttributeError, ValueError) as error:
            raise fail(
                "missing_package",
                f"it names {name}, which cannot be imported here: {error}",
                fix="install or import what defines it, or load with tensors_only=True",
            ) from None

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class Builder:
    """Makes one file's object from its values and tensors."""

    def __init__(
        self,
        table: Table,
        cells: dict[int, Cell],
        extra: Mapping[str, Any],
        placeholders: bool,
    ) -> None:
        self.table = table
        self.cells = cells
        self.extra = extra
        self.placeholders = placeholders or table.kind == "TorchScript"

    def build(self, tensors: list[Any]) -> Any:
        try:
            return self.table.index.build(
                tensors, self.storage, self.resolve, self.call, self.state
            )
        except CheckpointError:
            raise
        except (TypeError, ValueError, AttributeError, KeyError, RuntimeError) as error:
            raise fail(
                "damaged",
                f"its object cannot be made: {error}",
                path=self.table.source.name,
                fix="tensors_only=True, or only=, may still give the tensors",
            ) from error
        finally:
            torch._utils._validate_loaded_sparse_tensors()  # type: ignore[no-untyped-call]

    def storage(self, row: int, first: int, count: int) -> Any:
        """A storage that the object holds itself, or that an unusual tensor is made of; ``count``
        -1: all of it, else so many elements from ``first`` on."""
        size = self.table.storages[row].bytes
        held = untyped(self.cells[row], size)
        self.cells[row] = (held, -1)  # one storage object however often it is asked for
        dtype = torch_dtype(self.table.storages[row].dtype, self.table.storages[row].key)
        if count >= 0:
            held = held[first * dtype.itemsize : (first + count) * dtype.itemsize]
        return torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
            wrap_storage=held, dtype=dtype, _internal=True
        )

    def resolve(self, name: str) -> Any:
        for table in (_values(), self.extra, _known()):
            if name in table:
                return table[name]
        if self.placeholders:
            return Placeholder(name)
        raise ValueError(f"{name} is not known here")

    def call(self, name: str, args: tuple[Any, ...], created: bool) -> Any:
        function = _known().get(name)
        if function is not None:
            return function(*args)
        if name in self.extra:
            kind = self.extra[name]
            return kind.__new__(kind, *args) if created else kind(*args)
        if self.placeholders:
            return Placeholder(name, args)
        raise ValueError(f"{name} is not called here")

    def state(self, made: Any, name: str, state: Any) -> None:
        if isinstance(made, Placeholder):
            made.state = state
        elif type(made) is collections.OrderedDict and isinstance(state, dict):
            made.__dict__.update(state)
        elif name in self.extra:
            _set_state(made, state)
        else:
            raise ValueError(f"{name} takes no state")


def _set_state(made: Any, state: Any) -> None:
    """As pickle does it, for classes that the caller allowed."""
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
        return
    slots = None
    if isinstance(state, tuple) and len(state) == 2:
        state, slots = state
    if state:
        made.__dict__.update(state)
    for key, value in (slots or {}).items():
        setattr(made, key, value)


def allowed_names(safe_globals: SafeGlobals) -> dict[str, Any]:
    """The caller's own classes and functions by name, torch's allow list included."""
    out: dict[str, Any] = {}
    for item in [*torch.serialization.get_safe_globals(), *safe_globals]:
        if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], str):
            value, name = item
        elif hasattr(item, "__module__") and hasattr(item, "__qualname__"):
            value, name = item, f"{item.__module__}.{item.__qualname__}"
        else:
            raise fail(
                "argument",
                f"safe_globals has {item!r}, which is neither a class, a function nor a pair of "
                "one and its name",
            )
        if name.split(".")[0] in ("os", "sys", "posix", "nt", "subprocess", "builtins"):
            raise fail("argument", f"{name} is never safe to call from a file")
        out[name] = value
    return out


def anything(path: Any) -> Mapping[str, Any]:
    """For ``weights_only=False``, unless the environment forbids it."""
    if os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "").lower() in ("1", "y", "yes", "true"):
        raise fail(
            "argument",
            "weights_only=False, and TORCH_FORCE_WEIGHTS_ONLY_LOAD forbids it here",
            path=str(path),
            fix="safe_globals=[...] allows names that you know",
        )
    return Anything()


TIED = "solo.tied"  # {alias: name} in a safetensors file's metadata


def note_of(table: Table) -> dict[str, Any]:
    """The text entries of a safetensors file; the parser has checked them."""
    text = table.index.note() if table.index is not None else ""
    note = json.loads(text) if text else {}
    return note if isinstance(note, dict) else {}
