"""What of a script's modules is merged, in which order, and where its elements are.

The model is the parameters and persistent buffers of one or several modules, by name:

* floating parameters of two and more dimensions, large enough to matter, go through the
  codec (``PARAM``); vectors, scalars and small ones always travel as fp32 (``EXACT``);
* floating persistent buffers are averaged (``MEAN``), integer and bool ones take the maximum
  (``MAX``); non-persistent buffers are each node's own;
* a tensor that has several names (tied weights) is merged once, under its first;
* frozen parameters are part of the model, so that a joiner gets them and they may be unfrozen
  later. Only when they are much larger than what is trained (a LoRA base) are they left out:
  then a digest of them is compared between the nodes instead;
* integer parameters (quantised weights) are left out.

Tensors that are not contiguous, or not on the CPU, go through a copy in host memory (pinned
for CUDA); all others are read and written in place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from solo import _C
from solo.errors import InvalidArgument, NotSupported

SMALL_ELEMENTS = 1024  # fewer are sent as fp32: their bytes do not matter, their values do
FROZEN_BYTES_MAX = 64 << 20  # frozen parameters beyond it, and beyond the trained, are left out

_DTYPES = {
    torch.float32: _C.F32,
    torch.float64: _C.F64,
    torch.float16: _C.F16,
    torch.bfloat16: _C.BF16,
    torch.int8: _C.I8,
    torch.uint8: _C.U8,
    torch.int16: _C.I16,
    torch.int32: _C.I32,
    torch.int64: _C.I64,
    torch.bool: _C.BOOL,
}


@dataclass
class Entry:
    """One tensor of the model.

    Attributes:
        name: as in the module's ``state_dict``, without the prefixes of wrappers.
        owner: the module that holds it; None for a parameter that belongs to no module.
        key: its name in the owner.
        is_buffer: in the owner's buffers, not its parameters.
        tensor: the tensor itself; a buffer is looked up anew, since scripts replace them.
        shape, dtype, device: as they were when the model was taken over.
        role: what a merge does with it, as in solo.h.
        staging: the copy in host memory, where one is needed.
    """

    name: str
    owner: nn.Module | None
    key: str
    is_buffer: bool
    tensor: Tensor
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    role: int
    staging: Tensor | None = None

    def current(self) -> Tensor:
        """The tensor as the module holds it now."""
        if self.owner is None:
            return self.tensor
        held = self.owner._buffers if self.is_buffer else self.owner._parameters
        found = held.get(self.key)
        if found is None or (found is not self.tensor and not self.is_buffer):
            raise InvalidArgument(
                f"the model was changed after solo took it over: {self.name} was "
                f"{'removed' if found is None else 'replaced by another tensor'}. Change the "
                "model before it is wrapped and before the first step"
            )
        if found.shape != self.shape or found.dtype != self.dtype:
            raise InvalidArgument(
                f"the model was changed after solo took it over: {self.name} was {self.dtype} "
                f"{tuple(self.shape)}, now it is {found.dtype} {tuple(found.shape)}. Change the "
                "model before it is wrapped and before the first step"
            )
        return found


class Model:
    """The tensors that the nodes merge.

    Args:
        modules: the modules, in an order that is the same on every node.
        strays: trained parameters that belong to no module.
        ignored: names that DDP was told to ignore, by module.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        strays: Iterable[Tensor] = (),
        ignored: Sequence[set[str]] = (),
    ) -> None:
        self.modules = list(modules)
        self.entries: list[Entry] = []
        self.digest = ""  # of the frozen parameters that are left out
        self._known: set[int] = set()
        self._left_out: list[Entry] = []
        frozen: list[Entry] = []
        for index, module in enumerate(self.modules):
            prefix = f"{index}." if len(self.modules) > 1 else ""
            skip = ignored[index] if index < len(ignored) else set()
            for entry in _entries(module, prefix, skip):
                if id(entry.tensor) not in self._known:
                    self._known.add(id(entry.tensor))
                    is_frozen = not (entry.is_buffer or entry.tensor.requires_grad)
                    (frozen if is_frozen else self.entries).append(entry)
        for index, tensor in enumerate(strays):
            if id(tensor) not in self._known:
                self._known.add(id(tensor))
                self.entries.append(_entry(f"stray.{index}", None, "", False, tensor))
        self._known.update(id(p) for module in self.modules for p in module.parameters())
        self._take_frozen(frozen)
        if not any(not entry.is_buffer for entry in self.entries):
            raise InvalidArgument("solo is on, but the model has no parameters to merge")
        self._module_count = self._count_held()

    def _take_frozen(self, frozen: list[Entry]) -> None:
        trained = sum(e.tensor.nbytes for e in self.entries if not e.is_buffer)
        size = sum(entry.tensor.nbytes for entry in frozen)
        if size <= max(trained, FROZEN_BYTES_MAX):
            self.entries = [*frozen, *self.entries]
        elif frozen:
            self.digest = _digest(frozen)
            self._left_out = frozen

    def holds(self, tensor: Tensor) -> bool:
        """Whether this very tensor is part of the model, or was left out knowingly."""
        return id(tensor) in self._known

    def layout(self) -> list[tuple[str, int, int, int]]:
        """(name, elements, dtype, role) of each tensor, as ``_C.Engine.attach`` takes it."""
        rows = []
        for entry in self.entries:
            count = entry.tensor.numel() * (2 if entry.tensor.is_complex() else 1)
            rows.append((entry.name, count, _code(entry), entry.role))
        if self.digest and rows:  # the comparison of layouts then names it
            rows[0] = (f"{rows[0][0]} (frozen {self.digest})", *rows[0][1:])
        return rows

    @property
    def element_count(self) -> int:
        return sum(entry.tensor.numel() for entry in self.entries)

    def tensors(self) -> list[Tensor]:
        """All tensors as they are held now, to be written to."""
        return [entry.current().data for entry in self.entries]

    def check(self) -> None:
        """Raise if parameters or buffers came, went or thawed since the model was taken over."""
        if self._count_held() != self._module_count:
            raise InvalidArgument(
                "the model was changed after solo took it over: it has "
                f"{self._count_held()} parameters and buffers, it had {self._module_count}. "
                "Change the model before it is wrapped and before the first step"
            )
        for entry in self._left_out:
            if entry.tensor.requires_grad:
                raise InvalidArgument(
                    f"{entry.name} was frozen when solo took the model over, and with the other "
                    "frozen parameters too large to be merged; now it is trained, by each node "
                    "alone. Unfreeze it before the first step, or freeze it again after that"
                )

    def _count_held(self) -> int:
        return sum(
            sum(p is not None for p in m._parameters.values())
            + sum(key not in m._non_persistent_buffers_set for key in m._buffers)
            for module in self.modules
            for m in module.modules()
        )

    @torch.no_grad()
    def stage(self) -> tuple[list[int], list[Tensor]]:
        """Addresses of all elements in host memory, and the tensors that own that memory."""
        self.check()
        addresses: list[int] = []
        owners: list[Tensor] = []
        devices: set[torch.device] = set()
        for entry in self.entries:
            tensor = _real(entry.current())
            if tensor.device.type != "cpu" or not tensor.is_contiguous():
                if entry.staging is None:
                    entry.staging = _host_copy(tensor)
                entry.staging.copy_(tensor, non_blocking=tensor.is_cuda)
                if tensor.is_cuda:
                    devices.add(tensor.device)
                tensor = entry.staging
            addresses.append(tensor.data_ptr())
            owners.append(tensor)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        return addresses, owners

    @torch.no_grad()
    def unstage(self) -> None:
        """Bring what a merge wrote into host copies back to where the tensors are."""
        for entry in self.entries:
            tensor = _real(entry.current())
            if entry.staging is not None and (
                tensor.device.type != "cpu" or not tensor.is_contiguous()
            ):
                tensor.copy_(entry.staging, non_blocking=tensor.is_cuda)
        # The next stage() writes to the same host copies after these copies, in stream order.


def _real(tensor: Tensor) -> Tensor:
    """Its values for a merge. Autograd must not see that write (``detach()`` would tell it): a
    script with several optimizers may step one, which merges, between the forward and the
    backward pass of another model, and would end with an error then."""
    return torch.view_as_real(tensor.data) if tensor.is_complex() else tensor.data


def _host_copy(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)


def _entries(module: nn.Module, prefix: str, skip: set[str]) -> Iterator[Entry]:
    """Parameters, then persistent buffers; integer and empty parameters have nothing to merge."""
    for path, owner in module.named_modules():
        dotted = f"{path}." if path else ""
        for key, parameter in owner._parameters.items():
            if parameter is None or dotted + key in skip:
                continue
            _check_tensor(dotted + key, parameter)
            if parameter.numel() and (parameter.is_floating_point() or parameter.is_complex()):
                yield _entry(prefix + plain(dotted + key), owner, key, False, parameter)
    for path, owner in module.named_modules():
        dotted = f"{path}." if path else ""
        for key, buffer in owner._buffers.items():
            if buffer is None or key in owner._non_persistent_buffers_set or dotted + key in skip:
                continue
            _check_tensor(dotted + key, buffer)
            if buffer.numel():
                yield _entry(prefix + plain(dotted + key), owner, key, True, buffer)


def _entry(name: str, owner: nn.Module | None, key: str, is_buffer: bool, tensor: Tensor) -> Entry:
    if is_buffer:
        floats = tensor.is_floating_point() or tensor.is_complex()
        role = _C.MEAN if floats else _C.MAX
    else:
        role = _C.PARAM if tensor.dim() >= 2 and tensor.numel() >= SMALL_ELEMENTS else _C.EXACT
    entry = Entry(
        name, owner, key, is_buffer, tensor, tensor.shape, tensor.dtype, tensor.device, role
    )
    _code(entry)
    return entry


def plain(name: str) -> str:
    """A name without what torch.compile and DDP put into it, so that nodes may differ in that."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def _code(entry: Entry) -> int:
    code = _DTYPES.get(_real(entry.tensor).dtype)
    if code is None:
        raise NotSupported(
            f"{entry.name} is {entry.dtype}, which solo cannot merge. It merges "
            + ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        )
    return code


def _check_tensor(name: str, tensor: Tensor) -> None:
    if nn.parameter.is_lazy(tensor) or tensor.device.type == "meta":
        raise InvalidArgument(
            f"{name} has no values yet ({type(tensor).__name__} on {tensor.device}): run one "
            "forward pass, or load the weights, before the model is wrapped"
        )
    if type(tensor).__name__ == "DTensor" or tensor.layout is not torch.strided:
        raise NotSupported(
            f"{name} is sharded or sparse ({type(tensor).__name__}, {tensor.layout}): solo "
            "merges whole, dense tensors. Use DistributedDataParallel inside the node"
        )


def _digest(entries: Sequence[Entry]) -> str:
    """A short digest of names, shapes and some elements of each tensor."""
    digest = hashlib.blake2b(digest_size=8)
    for entry in entries:
        flat = entry.tensor.detach().reshape(-1)
        stride = max(1, flat.numel() // 64)
        sample = flat[::stride][:64].to("cpu", torch.float32).contiguous()
        digest.update(f"{entry.name} {tuple(entry.shape)} {entry.dtype}".encode())
        digest.update(bytes(sample.view(torch.uint8).tolist()))
    return digest.hexdigest()
