"""Objects and files made at random: what solo.load gives is what torch.load gives."""

from __future__ import annotations

import io
import pathlib
import tempfile
import warnings
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from load_files import DTYPES, assert_same, of_dtype, packed, raw

import solo

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False),
    st.text(max_size=20), st.binary(max_size=300),
)  # fmt: skip


NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8
)


def canonical(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Of any dtype, whole or a part of one, turned or spread."""
    whole = of_dtype(draw(st.sampled_from(DTYPES)), draw(st.integers(1, 40)) * 3)
    kind = draw(st.integers(0, 5))
    if kind == 1:
        return whole[1:]
    if kind == 2:
        return whole.t()
    if kind == 3:
        return whole[:, ::2]
    if kind == 4:
        return whole[:1, :1].expand(4, 3)
    return whole[:0] if kind == 5 else whole


def objects() -> st.SearchStrategy[Any]:
    def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        keys = st.one_of(st.text(max_size=8), st.integers(-5, 5))
        return st.one_of(
            st.lists(children, max_size=4),
            st.lists(children, max_size=3).map(tuple),
            st.dictionaries(keys, children, max_size=4),
        )

    return st.recursive(st.one_of(SCALARS, tensors()), containers, max_leaves=12)


@given(
    obj=objects(),
    legacy=st.booleans(),
    protocol=st.integers(2, 5),
    mode=st.sampled_from(["copy", "mmap"]),
    direct=st.sampled_from(["auto", "never", "always"]),
    threads=st.integers(0, 3),
    source=st.sampled_from(["path", "bytes", "stream"]),
)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_object_comes_back_as_torch_gives_it(
    obj: Any, legacy: bool, protocol: int, mode: str, direct: str, threads: int, source: str
) -> None:
    options: dict[str, Any] = {"_use_new_zipfile_serialization": not legacy}
    data = packed(obj, pickle_protocol=protocol, **options)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x"
        path.write_bytes(data)
        where: Any = {"path": path, "bytes": bytearray(data), "stream": io.BytesIO(data)}[source]
        loaded = solo.load(where, mode=mode, direct=direct, threads=threads)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = torch.load(path, weights_only=False)
            except AttributeError:  # torch 2.13 cannot read the newer dtypes of its legacy files
                expected = obj
        assert_same(loaded, expected)


@given(
    state=st.dictionaries(NAMES, tensors(), min_size=1, max_size=5),
    format=st.sampled_from(["pt", "safetensors"]),
    shard_size=st.one_of(st.none(), st.integers(1, 3000)),
)
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_is_saved_comes_back_and_fills_a_target(
    state: dict[str, torch.Tensor], format: str, shard_size: int | None
) -> None:
    if format == "safetensors":
        state = {n: t for n, t in state.items() if t.dtype not in (torch.complex32,
                                                                   torch.complex128)}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x"
        if not state:
            return
        solo.save(state, path, format=format, shard_size=shard_size)
        loaded = solo.load(path)
        target = {name: torch.zeros_like(tensor).contiguous() for name, tensor in state.items()}
        solo.load_into(target, path)
        assert set(loaded) == set(state)
        for name, tensor in state.items():
            for other in (loaded[name], target[name]):
                assert other.shape == tensor.shape and other.dtype == tensor.dtype
                assert raw(canonical(other)) == raw(canonical(tensor)), name
