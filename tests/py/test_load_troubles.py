"""What users run into with checkpoints: one test for each trouble, with the message it gets."""

from __future__ import annotations

import io
import logging
import os
import pathlib
import pickle
import zipfile
from typing import Any

import load_files
import numpy as np
import pytest
import torch
from load_files import packed, pickled_globals, rezip, safetensors_bytes, with_pickle, write

import solo
from solo import CheckpointError

TABLE = {
    "layers.0.weight": torch.ones(4, 4),
    "layers.1.weight": torch.ones(4, 4),
    "head": torch.ones(2),
}


def error_of(path: Any, **options: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        solo.load(path, **options)
    return caught.value


def saved_on(device: str, obj: Any = None) -> bytes:
    """As if the tensors had been saved on another device."""
    data = packed(obj if obj is not None else TABLE)
    old = zipfile.ZipFile(io.BytesIO(data)).read("archive/data.pkl")
    tag = f"X{chr(len(device))}\0\0\0{device}".encode()
    return with_pickle(data, old.replace(b"X\3\0\0\0cpu", tag))


# ---- devices ----


def test_a_file_saved_on_a_gpu_loads_on_a_machine_without(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, "x.pt", saved_on("cuda:0"))
    with caplog.at_level(logging.WARNING):
        assert solo.load(path)["head"].device == torch.device("cpu")
    assert "3 storages on cuda:0 when saved" in caplog.text
    assert "torch is the CPU build" in caplog.text or "CUDA_VISIBLE_DEVICES" in caplog.text


def test_saved_as_location_remaps_what_is_not_here(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, "x.pt", saved_on("cuda:3"))
    with caplog.at_level(logging.WARNING):
        assert solo.load(path, "saved")["head"].device == torch.device("cpu")
    assert "3 storages were saved on cuda:3" in caplog.text


def test_asking_for_cuda_without_one_says_why(tmp_path: pathlib.Path) -> None:
    error = error_of(write(tmp_path, "x.pt", packed(TABLE)), map_location="cuda")
    assert error.reason == "device"
    assert "sees no CUDA device" in str(error)
    assert "map_location='cpu'" in error.fix


@pytest.mark.parametrize(
    ("device", "hint"),
    [("cuda1", "cuda:1"), ("gpu", "cuda"), ("cdua:0", "cuda:0"), ("cpux", "cpu")],
)
def test_a_mistyped_device_is_told_before_reading(
    tmp_path: pathlib.Path, device: str, hint: str
) -> None:
    error = error_of(write(tmp_path, "x.pt", packed(TABLE)), map_location=device)
    assert f"unknown device {device!r}" in str(error)
    assert hint in error.fix


def test_a_module_name_in_map_location_is_not_ignored(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "x.pt", packed(TABLE))
    error = error_of(path, map_location={"layers.0": "meta"})
    assert "keys are the devices that tensors were saved on (here: cpu)" in str(error)
    assert "device_map={'layers.0': ...}" in error.fix


def test_an_int_is_a_cuda_index(tmp_path: pathlib.Path) -> None:
    assert "cuda:1 was asked for" in str(
        error_of(write(tmp_path, "x.pt", packed(TABLE)), map_location=1)
    )


def test_loading_touches_no_device_outside_the_plan(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one costs a context of hundreds of megabytes."""

    def touched(*args: Any) -> Any:
        raise AssertionError("a device was touched")

    for name in ("current_device", "mem_get_info", "_lazy_init", "set_device", "device"):
        monkeypatch.setattr(torch.cuda, name, touched)
    path = write(tmp_path, "x.pt", saved_on("cuda:0"))
    assert solo.load(path)["head"].device.type == "cpu"
    assert solo.load(path, {"cuda:0": "meta"})["head"].is_meta
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    from solo._load import place

    assert place.device_of(1) == torch.device("cuda:1")


def test_a_wrapper_subclass_does_not_keep_the_saved_device(tmp_path: pathlib.Path) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    pair = TwoTensor(torch.ones(3), torch.zeros(3))
    data = saved_on("cuda:0", {"pair": pair})
    with torch.serialization.safe_globals([TwoTensor]):
        loaded = solo.load(write(tmp_path, "x.pt", data))["pair"]
    assert loaded.device.type == "cpu" and loaded.a.device.type == "cpu"
    assert torch.equal(loaded.a, torch.ones(3)) and torch.equal(loaded.b, torch.zeros(3))


# ---- broken files ----


@pytest.mark.parametrize("share", [0.999, 0.9, 0.5, 0.1])
def test_a_truncated_file_says_so_whatever_its_size(tmp_path: pathlib.Path, share: float) -> None:
    for size in (10, 100_000):
        data = packed({"x": torch.ones(size)})
        error = error_of(write(tmp_path, "x.pt", data[: int(len(data) * share)]))
        assert error.reason == "truncated"
        assert "did not finish" in str(error)
        assert "download it again" in error.fix


@pytest.mark.parametrize("share", [0.999, 0.5, 0.05])
def test_truncated_safetensors_say_so(tmp_path: pathlib.Path, share: float) -> None:
    from safetensors.torch import save

    data = save({"x": torch.ones(1000), "y": torch.ones(1000)})
    assert error_of(write(tmp_path, "x", data[: int(len(data) * share)])).reason == "truncated"


@pytest.mark.parametrize("share", [0.99, 0.5, 0.02])
def test_truncated_legacy_files_say_so(tmp_path: pathlib.Path, share: float) -> None:
    data = packed({"x": torch.ones(1000)}, _use_new_zipfile_serialization=False)
    assert error_of(write(tmp_path, "x", data[: int(len(data) * share)])).reason == "truncated"


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (b"", "empty", "empty"),
        (bytes(5000), "zeros", "filled with zero bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:abcdef0123456789\nsize 1234567\n",
         "format", "Git LFS pointer, not the file itself"),
        (b"<!DOCTYPE html><html>login</html>", "format", "a web page"),
        (b"\n  <html>", "format", "a web page"),
        (b'{"error": "not found"}', "unsupported", "no weight_map"),
        (b"\x1f\x8b" + bytes(50), "format", "compressed with gzip"),
        (b"\x28\xb5\x2f\xfd" + bytes(50), "format", "compressed with zstd"),
        (b"GGUF" + bytes(50), "format", "GGUF"),
        (b"\x89HDF\r\n\x1a\n" + bytes(50), "format", "HDF5"),
        (b"\xff\xd8\xff\xe0" + bytes(50), "format", "a picture"),
        (b"\x93NUMPY" + bytes(50), "format", "NumPy"),
        (b"\x08\x07\x12\x07pytorch\x1a\x051.9.0" + bytes(50), "format", "an ONNX model"),
        (b"hello world, this is text" * 3, "format", "no format that is known"),
    ],
    ids=["empty", "zeros", "lfs", "html", "html2", "json", "gzip", "zstd", "gguf", "hdf5", "jpeg",
         "numpy", "onnx", "text"],
)  # fmt: skip
def test_what_is_no_checkpoint_is_named(
    tmp_path: pathlib.Path, data: bytes, reason: str, words: str
) -> None:
    error = error_of(write(tmp_path, "model.pt", data))
    assert error.reason == reason
    assert words in str(error)
    assert error.fix


def test_an_lfs_pointer_tells_the_real_size(tmp_path: pathlib.Path) -> None:
    text = (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:abcdef0123456789\nsize 1234567\n"
    )
    error = error_of(write(tmp_path, "x.bin", text))
    assert "oid abcdef01" in str(error) and "1234567 bytes" in str(error)
    assert "git lfs pull" in error.fix


def test_a_tar_is_named_and_not_unpacked(tmp_path: pathlib.Path) -> None:
    import tarfile

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("storages")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    error = error_of(write(tmp_path, "x.pt", out.getvalue()))
    assert "a tar archive" in str(error) and "torch 0.1.9" in error.fix


def test_the_content_decides_not_the_suffix(tmp_path: pathlib.Path) -> None:
    from safetensors.torch import save

    obj = {"x": torch.ones(3)}
    assert solo.load(write(tmp_path, "a.safetensors", packed(obj)))["x"].shape == (3,)
    assert solo.load(write(tmp_path, "b.pt", save(obj)))["x"].shape == (3,)


def test_a_flipped_byte_names_the_tensors_it_is_in(tmp_path: pathlib.Path) -> None:
    data = bytearray(packed({"a": torch.zeros(1000), "b": torch.ones(1000)}))
    at = solo.inspect(bytearray(data)) and data.find(b"\x00\x00\x80\x3f" * 100)
    data[at + 40] ^= 1
    path = write(tmp_path, "x.pt", bytes(data))
    error = error_of(path)
    assert error.reason == "checksum"
    assert "of it: b" in str(error)
    assert "1 of 2 storages are whole" in error.fix
    assert torch.equal(solo.load(path, only="a")["a"], torch.zeros(1000))
    assert "a" in solo.load(path, verify=False)


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: pathlib.Path) -> None:
    from solo import _C

    path = write(tmp_path, "x.bin", bytes(1 << 20))
    file = _C.File(str(path))
    arena = _C.Arena(1 << 20, 0)
    os.utime(path, ns=(1, 1))
    with pytest.raises(solo.SoloError, match="was changed while it was read"):
        _C.Reading(file, None, [(0, 1 << 20, arena.address, -1)], 1, 1, arena, 0, True).wait(None)


def test_a_file_that_shrinks_while_it_is_read_is_an_error_not_a_signal(
    tmp_path: pathlib.Path,
) -> None:
    from solo import _C

    path = write(tmp_path, "x.bin", bytes(1 << 20))
    file = _C.File(str(path))
    arena = _C.Arena(1 << 20, 0)
    os.truncate(path, 5000)
    with pytest.raises(solo.SoloError, match="it became shorter"):
        _C.Reading(file, None, [(0, 1 << 20, arena.address, -1)], 1, 1, arena, 0, True).wait(None)


def test_several_writers_at_once_are_suspected(tmp_path: pathlib.Path) -> None:
    data = bytearray(packed({"x": torch.ones(100)}, _use_new_zipfile_serialization=False))
    at = data.rfind((100).to_bytes(8, "little"))
    data[at : at + 8] = (-466 & (1 << 64) - 1).to_bytes(8, "little")
    assert "several processes may have written it" in str(
        error_of(write(tmp_path, "x", bytes(data)))
    )


def test_a_missing_record_is_named(tmp_path: pathlib.Path) -> None:
    data = rezip(packed(TABLE), {"data/1": None})
    assert "record data/1 is missing" in str(error_of(write(tmp_path, "x.pt", data)))


def test_all_that_is_wrong_is_in_one_message(tmp_path: pathlib.Path) -> None:
    data = rezip(packed(TABLE), {"data/0": b"short", "data/1": None})
    error = error_of(write(tmp_path, "x.pt", data))
    assert {p.code for p in error.problems} == {"mismatch", "missing"}
    assert "2 problems" in str(error)


# ---- pickles ----


def test_a_plain_pickle_of_tensors_is_explained(tmp_path: pathlib.Path) -> None:
    error = error_of(write(tmp_path, "x.pkl", pickle.dumps(TABLE, 2)))
    assert "written by pickle.dump, not torch.save" in str(error)


def test_all_unsafe_names_are_listed_and_harmless_ones_marked(tmp_path: pathlib.Path) -> None:
    data = with_pickle(
        packed({}),
        pickled_globals(("os", "system"), ("argparse", "Namespace"), ("my.model", "Net")),
    )
    error = error_of(write(tmp_path, "x.pt", data))
    assert error.reason == "unsafe"
    text = str(error)
    assert "names 3 things" in text and "nothing was run" in text
    assert "os.system" in text and "my.model.Net" in text
    assert "argparse.Namespace (command-line arguments)" in text
    assert "tensors_only=True" in error.fix and "weights_only=False" not in text


def test_numpy_numbers_are_called_harmless(tmp_path: pathlib.Path) -> None:
    error = error_of(write(tmp_path, "x.pt", packed({"epoch": np.float64(3.0)})))
    assert "(a NumPy number)" in str(error)


def test_a_whole_saved_module_is_listed_with_its_classes(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "x.pt", packed(torch.nn.Linear(2, 2)))
    assert "torch.nn.modules.linear.Linear" in str(error_of(path))
    loaded = solo.load(path, only="*weight")
    assert not isinstance(loaded, torch.nn.Module)


def test_python_2_strings_are_read(tmp_path: pathlib.Path) -> None:
    pickled = b"\x80\x02}q\x01U\x04nameq\x02U\x02\xe9xs."
    assert solo.load(write(tmp_path, "x.pt", with_pickle(packed({}), pickled))) == {"name": "éx"}


def test_torchscript_gives_its_tensors_and_runs_nothing(tmp_path: pathlib.Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    path = tmp_path / "script.pt"
    torch.jit.save(torch.jit.script(module), path)
    loaded = solo.load(path)
    assert set(loaded) == set(module.state_dict())
    assert torch.equal(loaded["0.weight"], module[0].weight)


# ---- safetensors ----


def test_an_unknown_dtype_names_the_tensor_and_is_never_guessed(tmp_path: pathlib.Path) -> None:
    data = safetensors_bytes({"w": {"dtype": "F3_X", "shape": [1], "data_offsets": [0, 1]}}, b"a")
    error = error_of(write(tmp_path, "x.safetensors", data))
    assert "tensor w has the dtype F3_X" in str(error)


def test_a_dtype_that_this_torch_lacks_is_an_error_of_that_tensor_alone(
    tmp_path: pathlib.Path,
) -> None:
    header = {
        "f6": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]},
        "u": {"dtype": "U8", "shape": [1], "data_offsets": [3, 4]},
    }
    path = write(tmp_path, "x.safetensors", safetensors_bytes(header, b"abcd"))
    assert "float6_e2m3fn" in str(error_of(path)) and "'f6'" in str(error_of(path))
    assert int(solo.load(path, only="u")["u"]) == ord("d")


def test_trailing_bytes_are_refused_unless_allowed(tmp_path: pathlib.Path) -> None:
    data = safetensors_bytes({"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"ab")
    path = write(tmp_path, "x.safetensors", data)
    assert "allow_trailing=True" in str(error_of(path))
    assert int(solo.load(path, allow_trailing=True)["x"]) == ord("a")


def test_unaligned_tensors_are_copied_to_aligned_memory(tmp_path: pathlib.Path) -> None:
    header = {
        "b": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "f": {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]},
    }
    data = safetensors_bytes(header, b"abc" + torch.tensor([1.5, 2.5]).numpy().tobytes())
    for mode in ("copy", "mmap"):
        loaded = solo.load(write(tmp_path, "x.safetensors", data), mode=mode)
        assert loaded["f"].data_ptr() % 4 == 0
        assert loaded["f"].tolist() == [1.5, 2.5] and bytes(loaded["b"].tolist()) == b"abc"


def test_packed_float4_halves_its_last_dimension(tmp_path: pathlib.Path) -> None:
    data = safetensors_bytes(
        {"w": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]}}, b"abcd"
    )
    loaded = solo.load(write(tmp_path, "x.safetensors", data))["w"]
    assert loaded.dtype == torch.float4_e2m1fn_x2 and loaded.shape == (2, 2)


def test_a_header_beyond_the_limit_is_told_with_its_size(tmp_path: pathlib.Path) -> None:
    from safetensors.torch import save

    path = write(tmp_path, "x", save({"x": torch.ones(1)}))
    error = error_of(path, limits={"metadata_max": 10})
    assert error.reason == "limit" and "more than the limit of 10" in str(error)


# ---- paths ----


def test_a_missing_path_shows_what_was_tried_and_what_is_near(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "model_final.pt", packed(TABLE))
    error = error_of(tmp_path / "model_finl.pt")
    assert error.reason == "not_found" and "model_final.pt" in error.fix
    monkeypatch.setenv("MODEL_PATH", f"{tmp_path}/a:{tmp_path}/b")
    error = error_of("some/where.pt")
    assert f"{tmp_path}/a/some/where.pt" in str(error) and f"{tmp_path}/b/some/where.pt" in str(
        error
    )


def test_model_path_variables_and_file_urls_are_followed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "zoo/m.pt", packed(TABLE))
    monkeypatch.setenv("MODEL_PATH", f"/nowhere:{tmp_path}/zoo")
    monkeypatch.setenv("SOLO_ZOO", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("m.pt", "$SOLO_ZOO/zoo/m.pt", "~/zoo/m.pt", f"file://{path}"):
        assert set(solo.load(name)) == set(TABLE)


def test_a_dangling_link_names_its_target_and_links_are_followed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "gone.pt").symlink_to("../blobs/abc")
    assert "symbolic link to ../blobs/abc, which does not exist" in str(
        error_of(tmp_path / "gone.pt")
    )
    write(tmp_path, "blobs/abc", packed(TABLE))
    (tmp_path / "here.pt").symlink_to("blobs/abc")
    assert set(solo.load(tmp_path / "here.pt")) == set(TABLE)


def test_a_file_that_may_not_be_read_is_told_so(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "x.pt", packed(TABLE))
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root reads everything")
    assert error_of(path).reason == "permission"


def test_a_fifo_does_not_hang(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in str(error_of(tmp_path / "pipe"))


# ---- memory ----


def test_memory_goes_back_when_tensors_are_gone(tmp_path: pathlib.Path) -> None:
    import gc

    import psutil

    path = write(tmp_path, "x.pt", packed({str(n): torch.ones(4 << 20) for n in range(4)}))
    solo.load(path)
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    loaded = solo.load(path)
    full = process.memory_info().rss - before
    assert full > 60 << 20
    kept = loaded.pop("2")
    del loaded
    gc.collect()
    assert process.memory_info().rss - before < 20 << 20  # one of four is alive
    assert float(kept.sum()) == 4 << 20
    del kept
    gc.collect()
    assert process.memory_info().rss - before < 4 << 20


def test_a_saved_slice_that_drags_its_storage_is_shown_and_can_be_compacted(
    tmp_path: pathlib.Path,
) -> None:
    whole = torch.ones(1 << 20)
    path = tmp_path / "x.pt"
    solo.save({"x": whole[:10]}, path)
    assert "4.0 MiB stored, 40 B used" in solo.inspect(path).text()
    solo.save({"x": whole[:10]}, path, compact=True)
    assert path.stat().st_size < 5000


def test_a_memory_limit_refuses_before_reading(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "x.pt", packed({"x": torch.ones(1 << 20)}))
    error = error_of(path, memory_limit="1MiB")
    assert error.reason == "memory" and "cpu needs 4.0 MiB, 1.0 MiB are allowed" in str(error)
    monkeypatch.setenv("SOLO_MEMORY", "2000000")
    assert error_of(path).reason == "memory"
    assert solo.load(path, mode="mmap")["x"].shape == (1 << 20,)
    assert solo.load(path, memory_limit="1GiB")["x"].shape == (1 << 20,)


def test_saving_over_a_mapped_file_leaves_the_mapping_whole(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "x.pt", packed({"x": torch.ones(100_000)}))
    loaded = solo.load(path, mode="mmap")
    solo.save({"x": torch.zeros(100_000)}, path)
    assert float(loaded["x"].sum()) == 100_000
    assert float(solo.load(path)["x"].sum()) == 0


def test_reading_only_metadata_reads_little(tmp_path: pathlib.Path) -> None:
    from solo._load import source, table

    data = packed({str(n): torch.ones(10_000) for n in range(20)})
    got = []

    def fetch(at: int, count: int) -> bytes:
        got.append(count)
        return data[at : at + count]

    kept = source.RangeSource("x", len(data), fetch, 1)
    table.open_table(kept, table.Options())
    assert sum(got) <= 2 * source.EDGE_BYTES and len(got) <= 2
    loaded = load_files.objects()
    assert loaded
