"""solo.load gives what torch.load(weights_only=True) gives, bit for bit."""

from __future__ import annotations

import io
import pathlib
import warnings
from typing import Any

import load_files
import pytest
import torch
from load_files import DTYPES, assert_same, of_dtype, packed, rezip, write

import solo

FORMATS: dict[str, dict[str, Any]] = {
    "zip": {},
    "legacy": {"_use_new_zipfile_serialization": False},
    "protocol3": {"pickle_protocol": 3},
    "protocol4": {"pickle_protocol": 4},
    "protocol5": {"pickle_protocol": 5},
}


def as_torch(path: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, weights_only=True, **options)


@pytest.mark.parametrize("mode", ["copy", "mmap"])
@pytest.mark.parametrize("format", ["zip", "legacy"])
@pytest.mark.parametrize("name", sorted(load_files.objects()))
def test_every_object_is_the_one_torch_gives(
    tmp_path: pathlib.Path, name: str, format: str, mode: str
) -> None:
    obj = load_files.objects()[name]
    path = write(tmp_path, "x.pt", packed(obj, **FORMATS[format]))
    if (name, format) == ("storage", "legacy"):  # torch 2.13 cannot read its own file
        assert solo.load(path, mode=mode).untyped().tolist() == obj.tolist()
        return
    assert_same(solo.load(path, mode=mode), as_torch(path))


@pytest.mark.parametrize("format", ["protocol3", "protocol4", "protocol5"])
@pytest.mark.parametrize("name", ["dict", "nested", "optimizer", "plain", "views"])
def test_newer_pickle_protocols_are_read(tmp_path: pathlib.Path, name: str, format: str) -> None:
    obj = load_files.objects()[name]
    path = write(tmp_path, "x.pt", packed(obj, **FORMATS[format]))
    assert_same(solo.load(path), torch.load(path, weights_only=False))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_keeps_its_bits(tmp_path: pathlib.Path, dtype: torch.dtype) -> None:
    tensor = of_dtype(dtype)
    path = write(tmp_path, "x.pt", packed({"x": tensor}))
    assert_same(solo.load(path), {"x": tensor})


def test_shared_storages_stay_shared(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "x.pt", packed(load_files.objects()["views"]))
    loaded = solo.load(path)
    loaded["whole"][1, 2] = -1.0
    assert loaded["row"][2] == loaded["column"][1] == loaded["transposed"][2, 1] == -1.0


def test_one_tensor_at_two_places_is_one_object(tmp_path: pathlib.Path) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    path = write(tmp_path, "x.pt", packed({"a": weight, "b": weight}))
    loaded = solo.load(path)
    assert loaded["a"] is loaded["b"]


def test_a_list_that_contains_itself_comes_back_so(tmp_path: pathlib.Path) -> None:
    knot: list[Any] = [torch.ones(1)]
    knot.append(knot)
    loaded = solo.load(write(tmp_path, "x.pt", packed(knot)))
    assert loaded[1] is loaded


@pytest.mark.parametrize("alignment", [1, 64, 4096])
def test_any_alignment_of_the_writer_is_read(tmp_path: pathlib.Path, alignment: int) -> None:
    from torch.utils.serialization import config

    obj = load_files.objects()["nested"]
    before = config.save.storage_alignment
    config.save.storage_alignment = alignment
    try:
        data = packed(obj)
    finally:
        config.save.storage_alignment = before
    for mode in ("copy", "mmap"):
        assert_same(solo.load(write(tmp_path, "x.pt", data), mode=mode), obj)


def test_a_file_without_checksums_is_read(tmp_path: pathlib.Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        data = packed({"x": torch.arange(5)})
    finally:
        torch.serialization.set_crc32_options(True)
    path = write(tmp_path, "x.pt", data)
    assert torch.equal(solo.load(path)["x"], torch.arange(5))
    assert solo.inspect(path).files[0]["checksums"] == "none"


def test_an_archive_that_another_tool_wrote_again_is_read(tmp_path: pathlib.Path) -> None:
    obj = {"x": torch.arange(1000), "y": torch.ones(7)}
    path = write(tmp_path, "x.pt", rezip(packed(obj), {}))
    assert_same(solo.load(path), obj)


def test_compressed_records_are_inflated_not_taken_for_values(tmp_path: pathlib.Path) -> None:
    obj = {"x": torch.zeros(1000), "y": torch.ones(7)}
    data = rezip(packed(obj), {}, deflate=("data/0", "data/1"))
    for mode in ("copy", "mmap"):
        assert_same(solo.load(write(tmp_path, "x.pt", data), mode=mode), obj)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.complex64, torch.uint16])
def test_files_of_big_endian_machines_are_swapped(
    tmp_path: pathlib.Path, dtype: torch.dtype
) -> None:
    tensor = of_dtype(dtype)
    width = dtype.itemsize // (2 if dtype.is_complex else 1)
    swapped = bytes(
        load_files.raw(tensor)[at + width - 1 - i]
        for at in range(0, tensor.numel() * dtype.itemsize, width)
        for i in range(width)
    )
    data = rezip(packed({"x": tensor}), {"byteorder": b"big", "data/0": swapped})
    assert_same(solo.load(write(tmp_path, "x.pt", data))["x"], tensor)


def test_zip64_files_are_read(tmp_path: pathlib.Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    path = tmp_path / "big.pt"
    with FakeTensorMode():
        obj = {"big": torch.empty(5 << 30, dtype=torch.uint8), "small": torch.empty(3)}
    with torch.serialization.skip_data(materialize_fake_tensors=True):
        torch.save(obj, path)
    found = solo.inspect(path)
    assert [(t.name, t.bytes) for t in found.tensors] == [("big", 5 << 30), ("small", 12)]
    assert path.stat().st_blocks * 512 < 1 << 20
    assert solo.load(path, only="small", verify=False)["small"].shape == (3,)


@pytest.mark.parametrize("name", ["dict", "views", "state_dict"])
@pytest.mark.parametrize("format", ["zip", "legacy"])
def test_bytes_and_file_objects_are_read(tmp_path: pathlib.Path, name: str, format: str) -> None:
    obj = load_files.objects()[name]
    data = packed(obj, **FORMATS[format])
    assert_same(solo.load(io.BytesIO(data)), obj)
    assert_same(solo.load(bytearray(data)), obj)
    path = write(tmp_path, "x.pt", data)
    with path.open("rb") as stream:
        assert_same(solo.load(stream), obj)
    assert_same(solo.load(str(path)), obj)
    assert_same(solo.load(bytes(path)), obj)


def test_objects_saved_one_behind_the_other_are_loaded_in_turn() -> None:
    stream = io.BytesIO()
    for number in range(3):
        torch.save(torch.full((4,), number), stream, _use_new_zipfile_serialization=False)
    stream.seek(0)
    assert [int(solo.load(stream)[0]) for _ in range(3)] == [0, 1, 2]


def test_tensors_are_aligned_and_can_be_changed(tmp_path: pathlib.Path) -> None:
    sizes = [3, 17, 1000, 70000]
    path = write(tmp_path, "x.pt", packed({str(n): torch.ones(n) for n in sizes}))
    for mode in ("copy", "mmap"):
        for tensor in solo.load(path, mode=mode).values():
            assert tensor.data_ptr() % 64 == 0
            tensor.add_(1)
            assert float(tensor.min()) == 2.0
    assert float(solo.load(path)["3"].max()) == 1.0


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("direct", ["never", "always"])
def test_threads_and_direct_reads_give_the_same_bytes(
    tmp_path: pathlib.Path, threads: int, direct: str
) -> None:
    generator = torch.Generator().manual_seed(7)
    obj = {
        str(n): torch.randint(0, 255, (n,), dtype=torch.uint8, generator=generator)
        for n in (1, 4095, 4096, 4097, 3 << 20, 9_000_001, 5)
    }
    path = write(tmp_path, "x.pt", packed(obj))
    assert_same(solo.load(path, threads=threads, direct=direct), obj)
    some = solo.load(path, threads=threads, direct=direct, only=["4097", "9000001", "5"])
    assert_same(some, {key: obj[key] for key in ("4097", "9000001", "5")})
    target = {key: torch.zeros_like(value) for key, value in obj.items()}
    solo.load_into(target, path, threads=threads, direct=direct)
    assert_same(target, obj)


def test_floating_tensors_are_converted_on_request(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "x.pt", packed({"f": torch.ones(3), "i": torch.ones(3).int()}))
    loaded = solo.load(path, dtype=torch.bfloat16)
    assert loaded["f"].dtype == torch.bfloat16
    assert loaded["i"].dtype == torch.int32


def test_a_saved_slice_of_a_loaded_file_is_small(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "x.pt", packed({str(n): torch.ones(1000) for n in range(50)}))
    assert len(packed(solo.load(path)["3"])) < 8000


def test_names_that_a_caller_allows_are_used(tmp_path: pathlib.Path) -> None:
    import argparse

    path = write(tmp_path, "x.pt", packed({"args": argparse.Namespace(lr=0.1), "x": torch.ones(1)}))
    loaded = solo.load(path, safe_globals=[argparse.Namespace])
    assert loaded["args"].lr == 0.1
    with torch.serialization.safe_globals([argparse.Namespace]):
        assert solo.load(path)["args"].lr == 0.1


def test_tensors_only_keeps_strangers_as_placeholders(tmp_path: pathlib.Path) -> None:
    mark = tmp_path / "ran"
    data = packed({"x": torch.ones(2), "evil": load_files.Evil(mark)})
    loaded = solo.load(write(tmp_path, "x.pt", data), tensors_only=True)
    assert torch.equal(loaded["x"], torch.ones(2))
    assert loaded["evil"].name == "builtins.exec"
    assert not mark.exists()


def test_storage_views_of_torch_before_0_4_are_read(tmp_path: pathlib.Path) -> None:
    """Parts of one storage, each with a key of its own: they go on sharing its memory."""
    path = write(tmp_path, "old.pt", load_files.legacy_with_views())
    loaded = solo.load(path)
    assert loaded["head"].tolist() == [0.0, 1.0, 2.0]
    assert loaded["tail"].tolist() == [5.0, 6.0] and loaded["whole"].numel() == 8
    loaded["tail"][0] = -1
    assert loaded["whole"][5] == -1
    theirs = as_torch(path)
    assert all(torch.equal(theirs[n], solo.load(path)[n]) for n in theirs)


@pytest.mark.parametrize("view", [("v", 6, 3), ("v", -1, 2), ("v", 1), ("v", 2**62, 2**62), 7])
def test_storage_views_outside_their_storage_are_refused(tmp_path: pathlib.Path, view: Any) -> None:
    path = write(tmp_path, "old.pt", load_files.legacy_with_views(view))
    with pytest.raises(solo.CheckpointError) as caught:
        solo.load(path)
    assert caught.value.reason == "damaged"


def test_a_tensor_outside_its_storage_view_is_refused(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "old.pt", load_files.legacy_with_views(("v", 5, 1)))
    with pytest.raises(solo.CheckpointError, match="beyond its storage's view"):
        solo.load(path)


# ---- torch.load's own words ----


def test_mmap_is_the_word_of_torch_for_the_mode(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "x.pt", packed({"x": torch.arange(5)}))
    for mmap in (True, False):
        assert torch.equal(solo.load(path, mmap=mmap)["x"], torch.arange(5))
    assert solo.load(path, mmap=True, memory_limit=1)["x"].sum() == 10
    with pytest.raises(solo.CheckpointError):
        solo.load(path, mmap=False, memory_limit=1)


def test_whole_modules_are_loaded_by_explicit_word_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5))
    for name, options in FORMATS.items():
        path = write(tmp_path, f"{name}.pt", packed({"net": module, "epoch": 3}, **options))
        with pytest.raises(solo.CheckpointError) as caught:
            solo.load(path)
        assert caught.value.reason == "unsafe"
        loaded = solo.load(path, weights_only=False)
        assert type(loaded["net"]) is torch.nn.Sequential and loaded["epoch"] == 3
        one = torch.ones(3)
        assert torch.equal(loaded["net"].eval()(one), module.eval()(one))
        assert_same(dict(loaded["net"].state_dict()), dict(module.state_dict()))
        assert isinstance(loaded["net"][0].weight, torch.nn.Parameter)
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    with pytest.raises(solo.CheckpointError, match="forbids it"):
        solo.load(path, weights_only=False)


def test_a_class_that_cannot_be_imported_is_named(tmp_path: pathlib.Path) -> None:
    pickled = load_files.pickled_globals(("my.model", "Net"))
    path = write(tmp_path, "x.pt", load_files.with_pickle(packed({}), pickled))
    with pytest.raises(solo.CheckpointError, match=r"my\.model\.Net, which cannot be imported"):
        solo.load(path, weights_only=False)


def test_the_unsafe_unpickler_is_never_the_environments_choice(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    mark = tmp_path / "ran"
    path = write(tmp_path, "x.pt", packed({"x": load_files.Evil(mark)}))
    with pytest.raises(solo.CheckpointError):
        solo.load(path)
    assert not mark.exists()


def test_strides_of_axes_of_one_are_kept(tmp_path: pathlib.Path) -> None:
    """They tell the memory format of a tensor, although they move nothing."""
    obj = {"t": torch.ones(3, 1).t(), "last": torch.ones(2, 1, 3, 3).to(
        memory_format=torch.channels_last)}  # fmt: skip
    loaded = solo.load(write(tmp_path, "x.pt", packed(obj)))
    assert {n: t.stride() for n, t in loaded.items()} == {n: t.stride() for n, t in obj.items()}
