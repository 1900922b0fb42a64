"""Checkpoints for the loading tests: good ones of every kind, and bytes to break them with."""

from __future__ import annotations

import io
import json
import pathlib
import pickle
import struct
import warnings
import zipfile
from collections import Counter, OrderedDict
from typing import Any

import torch


def packed(obj: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(obj, stream, **options)
    return stream.getvalue()


def safetensors_bytes(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def rezip(data: bytes, change: dict[str, bytes | None], *, deflate: tuple[str, ...] = ()) -> bytes:
    """The archive written again by another tool, with some records other or gone."""
    old = zipfile.ZipFile(io.BytesIO(data))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            short = name.partition("/")[2]
            content = change.get(short, old.read(name))
            if content is not None:
                kind = zipfile.ZIP_DEFLATED if short in deflate else zipfile.ZIP_STORED
                new.writestr(name, content, kind)
    return out.getvalue()


def with_pickle(data: bytes, pickled: bytes) -> bytes:
    return rezip(data, {"data.pkl": pickled})


def pickled_globals(*names: tuple[str, str]) -> bytes:
    """A pickle that calls each of these names without arguments."""
    body = b"".join(f"c{module}\n{name}\n".encode() + b")R" for module, name in names)
    return b"\x80\x02(" + body + b"l."


def objects() -> dict[str, Any]:
    """Objects of every shape that torch.save takes and weights_only gives back."""
    a = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    return {
        "tensor": a,
        "dict": {"a": a, "b": torch.ones(3), "n": 3, "f": 2.5, "s": "text", "none": None},
        "nested": {"m": {"l": [a, (a[0], {"x": a.t()})], "t": True, "e": {}}, 7: [1, [2, []]]},
        "views": {"whole": a, "row": a[1], "column": a[:, 2], "transposed": a.t(), "tail": a[2:]},
        "state_dict": model.state_dict(),
        "optimizer": {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        "parameter": torch.nn.Parameter(a.clone(), requires_grad=False),
        "requires_grad": a.clone().requires_grad_(),
        "empty": {"z": torch.zeros(0), "zz": torch.zeros(3, 0, 2), "scalar": torch.tensor(5)},
        "expanded": torch.ones(1, 3).expand(100, 3),
        "plain": {
            "bytes": b"x" * 300,
            "bytearray": bytearray(b"y"),
            "complex": 1 + 2j,
            "set": {1, 2},
            "size": torch.Size([1, 2]),
            "device": torch.device("cpu"),
            "dtype": torch.bfloat16,
            "big": 2**100,
            "negative": -(2**40),
            "counter": Counter("abca"),
            "ordered": OrderedDict(x=1, y=a),
            "unicode": "é€😀",
        },
        "sparse": torch.eye(4).to_sparse(),
        "csr": torch.eye(4).to_sparse_csr(),
        "quantized": torch.quantize_per_tensor(a, 0.1, 3, torch.quint8),
        "per_channel": torch.quantize_per_channel(
            a, torch.full((4,), 0.1), torch.zeros(4), 0, torch.qint8
        ),
        "conj": torch.tensor([1 + 2j, 3j]).conj(),
        "negated": torch._neg_view(torch.ones(3)),
        "meta": torch.empty(3, 4, device="meta"),
        "storage": a.untyped_storage(),
    }


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
    torch.complex32, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


def of_dtype(dtype: torch.dtype, count: int = 12) -> torch.Tensor:
    size = count * torch.empty(0, dtype=dtype).element_size()
    data = (
        torch.arange(size, dtype=torch.uint8) % 2
        if dtype == torch.bool
        else torch.arange(size, dtype=torch.uint8)
    )
    return data.view(dtype).reshape(3, -1)


def raw(tensor: torch.Tensor) -> bytes:
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    return bytes(
        tensor.detach()
        .contiguous()
        .flatten()
        .resolve_conj()
        .resolve_neg()
        .view(torch.uint8)
        .numpy()
    )


def assert_same(a: Any, b: Any, path: str = "") -> None:
    """Equal in type, value and bits, all the way down."""
    assert type(a) is type(b), f"{path}: {type(a)} and {type(b)}"
    if isinstance(a, torch.Tensor):
        assert a.shape == b.shape and a.dtype == b.dtype and a.layout == b.layout, path
        assert a.requires_grad == b.requires_grad and a.device == b.device, path
        assert a.is_conj() == b.is_conj() and a.is_neg() == b.is_neg(), path
        if a.layout == torch.strided and not a.is_meta:
            assert a.stride() == b.stride() and a.storage_offset() == b.storage_offset(), path
            assert a.untyped_storage().nbytes() == b.untyped_storage().nbytes(), path
            assert raw(a) == raw(b), path
            assert not a._is_view() or b._is_view(), path
        elif a.layout != torch.strided:
            assert torch.equal(a.to_dense(), b.to_dense()), path
    elif isinstance(a, (torch.UntypedStorage, torch.TypedStorage)):
        assert a.tolist() == b.tolist(), path
    elif isinstance(a, dict):
        assert list(a) == list(b), path
        for key in a:
            assert_same(a[key], b[key], f"{path}[{key!r}]")
        assert_same(getattr(a, "__dict__", None), getattr(b, "__dict__", None), f"{path}.__dict__")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for number, (one, other) in enumerate(zip(a, b, strict=True)):
            assert_same(one, other, f"{path}[{number}]")
    else:
        assert a == b, path


def write(folder: pathlib.Path, name: str, data: bytes) -> pathlib.Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


class Evil:
    """Would create a file if anybody ran what its pickle says."""

    def __init__(self, mark: pathlib.Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> Any:
        return (exec, (f"open({self.mark!r}, 'w')",))


class _Part:
    """A view of the only storage of a file of torch before 0.4, as a tensor."""

    def __init__(self, view: Any, count: int) -> None:
        self.view = view
        self.count = count

    def __reduce__(self) -> Any:
        arguments = (_Storage(self.view), 0, (self.count,), (1,), False, OrderedDict())
        return (torch._utils._rebuild_tensor_v2, arguments)


class _Storage:
    def __init__(self, view: Any) -> None:
        self.view = view


def legacy_with_views(view: Any = ("v", 5, 2)) -> bytes:
    """Three tensors of one storage of 8 floats: all of it, its head, and what view says."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            if isinstance(obj, _Storage):
                return ("storage", torch.FloatStorage, "root", "cpu", 8, obj.view)
            return None

    obj = {"whole": _Part(None, 8), "head": _Part(("h", 0, 3), 3), "tail": _Part(view, 2)}
    out = io.BytesIO()
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
    for header in (0x1950A86A20F9469CFC6C, 1001, system):
        pickle.dump(header, out, 2)
    Pickler(out, 2).dump(obj)
    pickle.dump(["root"], out, 2)
    out.write((8).to_bytes(8, "little") + struct.pack("<8f", *range(8)))
    return out.getvalue()


def save_dcp(obj: dict[str, Any], path: pathlib.Path) -> None:
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(dict(obj), checkpoint_id=str(path), no_dist=True)


def unpicklable(obj: Any) -> bytes:
    return pickle.dumps(obj, 2)
