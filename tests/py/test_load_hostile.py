"""Files made to hurt: each gets its error in bounded time and memory, and nothing is run."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import pickle
import resource
import struct
import subprocess
import sys
import zipfile
from typing import Any

import load_files
import pytest
import torch
from load_files import packed, pickled_globals, rezip, safetensors_bytes, with_pickle, write

import solo
from solo import CheckpointError

GOOD = {"x": torch.ones(3), "y": torch.zeros(2)}


def refused(path: Any, **options: Any) -> CheckpointError:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError) as caught:
        solo.load(path, **options)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200 << 10, f"the peak grew by {grown} KiB"
    return caught.value


def tensor_pickle(
    *,
    elements: int = 3,
    offset: int = 0,
    size: tuple[int, ...] = (3,),
    stride: tuple[int, ...] = (1,),
) -> bytes:
    """{"x": a tensor described like this}, by hand."""

    def number(value: int) -> bytes:
        return pickle.dumps(value, 2)[2:-1]

    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(map(number, values)) + b"t"

    storage = (
        b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpu"
        + number(elements)
        + b"tQ"
    )
    return (
        (
            b"\x80\2}X\1\0\0\0xctorch._utils\n_rebuild_tensor_v2\n("
            + storage
            + number(offset)
            + numbers(size)
            + numbers(stride)
            + b"\x89ccollections\nOrderedDict\n)Rtrs."[:-2]
            + b"s."
        )
        .replace(b")Rtrs.", b")RtRs.")
        .replace(b")Rts.", b")RtRs.")
    )


# ---- pickles ----


def test_nothing_in_a_file_is_ever_called(tmp_path: pathlib.Path) -> None:
    mark = tmp_path / "ran"
    evil = load_files.Evil(mark)
    for data in (
        packed(evil),
        packed({"x": torch.ones(1), "y": [evil]}),
        packed(evil, _use_new_zipfile_serialization=False),
        packed(evil, pickle_protocol=4),
        with_pickle(packed(GOOD), pickle.dumps(evil, 5)),
    ):
        for options in ({}, {"tensors_only": True}, {"only": "*"}):
            with contextlib.suppress(CheckpointError):
                solo.load(write(tmp_path, "x.pt", data), **options)
            assert not mark.exists()


@pytest.mark.parametrize(
    ("pickled", "reason"),
    [
        (b"\x80\x02Nr\0\0\0\x10.", "damaged"),  # LONG_BINPUT 2^28: 4 GB in C's unpickler
        (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b".", "damaged"),
        (b"\x80\x02X\xff\xff\xff\xff.", "truncated"),
        (b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.", ""),  # FRAME: only a hint
        (b"\x80\x02" + b"]" * 100_000 + b"." , "damaged"),
        (b"\x80\x02N" + b"\x85" * 100_000 + b".", "limit"),  # nested too deep
        (b"\x80\x02}q\x00" + b"h\x00" * 10 + b".", "damaged"),
        (b"\x80\x02h\x05.", "damaged"),
        (b"\x80\x02(.", "damaged"),
        (b"\x80\x02R.", "damaged"),
        (b"\x80\x02NNs.", "damaged"),
        (b"\x80\x02K\x01K\x02K\x03s.", "damaged"),  # SETITEM on an int: CVE-2026-24747
        (b"\x80\x02K\x01K\x02a.", "damaged"),
        (b"\x80\x02ios\nsystem\n.", "unsupported"),
        (b"\x80\x02(cos\nsystem\no.", "unsafe"),
        (b"\x80\x02\x82\x01.", "unsupported"),  # EXT1
        (b"\x80\x02S'x'\n.", "unsupported"),
        (b"\x80\x05\x97.", "unsupported"),  # out-of-band buffer
        (b"\x80\x02K\x01)R.", "damaged"),  # call of an int
        (b"\x80\x02ctorch\nfloat32\n)R.", "damaged"),
        (b"\x80\x02ctorch\nFloatStorage\nM\xff\xff\x85R.", "damaged"),
        (b"\x80\x02c" + b"a" * 1000 + b"\nb\n.", "damaged"),
        (b"\x80\x02N.N.", "damaged"),  # two pickles in one record
        (b"\x80\x07N.", "damaged"),
        (b"", "truncated"),
    ],
)  # fmt: skip
def test_hostile_pickles(tmp_path: pathlib.Path, pickled: bytes, reason: str) -> None:
    path = write(tmp_path, "x.pt", with_pickle(packed(GOOD), pickled))
    if reason:
        assert refused(path).reason == reason
    else:
        solo.load(path)


def test_calls_that_would_allocate_are_not_made(tmp_path: pathlib.Path) -> None:
    for name, argument in (("builtins\nbytearray", 1 << 36), ("torch\nTensor", 1 << 36),
                           ("torch\nFloatTensor", 1 << 36)):  # fmt: skip
        number = pickle.dumps(argument, 2)[2:-1]
        pickled = b"\x80\x02c" + name.encode() + b"\n" + number + b"\x85R."
        refused(write(tmp_path, "x.pt", with_pickle(packed(GOOD), pickled)))


def test_a_dag_of_2_to_the_40_is_built_once(tmp_path: pathlib.Path) -> None:
    pickled = (
        b"\x80\x02]q\x00"
        + b"".join(
            b"h" + bytes([n]) * 1 + b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) for n in range(40)
        )
        + b"\x86."
    )
    path = write(tmp_path, "x.pt", with_pickle(packed(GOOD), pickled))
    try:
        loaded = solo.load(path)
    except CheckpointError:
        return
    assert isinstance(loaded, tuple)


def test_a_memoized_text_is_made_once(tmp_path: pathlib.Path) -> None:
    text = b"X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20)
    pickled = b"\x80\x02]q\x01(" + text + b"q\x00" + b"h\x00" * 100_000 + b"e."
    loaded = solo.load(write(tmp_path, "x.pt", with_pickle(packed(GOOD), pickled)))
    assert len(loaded) == 100_001 and loaded[0] is loaded[100_000]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, ""),
        ({"elements": 4}, "mismatch"),
        ({"elements": 1 << 61}, "damaged"),
        ({"offset": 1}, "mismatch"),
        ({"offset": (1 << 58)}, "damaged"),
        ({"offset": -1}, "damaged"),
        ({"size": (4,)}, "mismatch"),
        ({"size": (-1,)}, "damaged"),
        ({"stride": (2,)}, "mismatch"),
        ({"stride": (-1,)}, "damaged"),
        ({"size": (3, 3), "stride": (1, 1)}, "mismatch"),
        ({"size": (1 << 40,), "stride": (0,)}, "limit"),
        ({"size": (1 << 32, 1 << 32), "stride": (0, 0)}, "limit"),
        ({"size": (1 << 50, 1 << 50), "stride": (1 << 50, 1)}, "mismatch"),
        ({"size": (1,) * 65, "stride": (1,) * 65}, "damaged"),
        ({"size": (3,), "stride": ()}, "damaged"),
        ({"size": (0, 1 << 50), "stride": (1, 1)}, ""),
    ],
)
def test_hostile_tensors(tmp_path: pathlib.Path, fields: dict[str, Any], reason: str) -> None:
    path = write(
        tmp_path, "x.pt", with_pickle(packed({"x": torch.ones(3)}), tensor_pickle(**fields))
    )
    if reason:
        assert refused(path).reason == reason
    else:
        assert solo.load(path)["x"].shape == fields.get("size", (3,))


def test_a_stride_bomb_is_loaded_by_explicit_word_alone(tmp_path: pathlib.Path) -> None:
    pickled = tensor_pickle(size=(1 << 40,), stride=(0,))
    path = write(tmp_path, "x.pt", with_pickle(packed({"x": torch.ones(3)}), pickled))
    assert solo.load(path, allow_expanded=True)["x"].shape == (1 << 40,)


# ---- zip ----


def patched(data: bytes, find: bytes, replace: bytes, *, last: bool = True) -> bytes:
    at = data.rfind(find) if last else data.find(find)
    assert at >= 0
    return data[:at] + replace + data[at + len(find) :]


def test_duplicate_records_are_refused(tmp_path: pathlib.Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive, pytest.warns(UserWarning):
        for name, content in (("a/data.pkl", b"\x80\x02N."), ("a/data.pkl", b"\x80\x02K\1.")):
            archive.writestr(name, content)
    assert "twice" in str(refused(write(tmp_path, "x.pt", out.getvalue())))


def test_names_that_differ_in_case_alone_are_refused(tmp_path: pathlib.Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in ("a/data.pkl", "a/DATA.PKL"):
            archive.writestr(name, b"\x80\x02N.")
    assert refused(write(tmp_path, "x.pt", out.getvalue())).reason == "duplicate"


def test_a_second_top_directory_is_refused(tmp_path: pathlib.Path) -> None:
    for other in ("b/data/0", "../../etc/passwd", "/etc/passwd", "plain"):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("a/data.pkl", b"\x80\x02N.")
            archive.writestr(other, b"x")
        assert "not under the archive's top directory" in str(
            refused(write(tmp_path, "x.pt", out.getvalue()))
        )


def test_records_that_overlap_are_refused(tmp_path: pathlib.Path) -> None:
    data = bytearray(packed(GOOD))
    entries = [n for n in range(len(data)) if data[n : n + 4] == b"PK\1\2"]
    first, second = entries[3], entries[4]
    data[second + 42 : second + 46] = data[first + 42 : first + 46]
    assert refused(write(tmp_path, "x.pt", bytes(data))).reason in ("overlap", "mismatch")


def test_a_local_header_that_contradicts_the_directory_is_refused(tmp_path: pathlib.Path) -> None:
    data = packed({"x": torch.ones(1000)})
    path = write(tmp_path, "x.pt", patched(data, b"archive/data/0", b"archive/data/1", last=False))
    for mode in ("copy", "mmap"):
        assert "contradicts the zip directory" in str(refused(path, mode=mode))


def test_shifted_data_is_refused(tmp_path: pathlib.Path) -> None:
    """The local extra field grew: other readers would take other bytes."""
    data = bytearray(packed({"x": torch.ones(1000)}))
    at = data.find(b"archive/data/0") - 2
    data[at] += 4
    assert refused(write(tmp_path, "x.pt", bytes(data))).reason == "mismatch"


@pytest.mark.parametrize("junk", [b"x", b"PK\5\6" + bytes(18), bytes(70_000)])
def test_bytes_behind_the_end_are_refused(tmp_path: pathlib.Path, junk: bytes) -> None:
    error = refused(write(tmp_path, "x.pt", packed(GOOD) + junk))
    assert error.reason in ("damaged", "truncated", "mismatch")


def test_encrypted_and_strange_methods_are_refused(tmp_path: pathlib.Path) -> None:
    for at, value, words in ((8, 1, "encrypted"), (10, 12, "packed by method 12")):
        data = bytearray(packed(GOOD))
        entry = data.find(b"PK\1\2")
        data[entry + at] |= value
        assert words in str(refused(write(tmp_path, "x.pt", bytes(data))))


def test_a_zip_bomb_costs_nothing(tmp_path: pathlib.Path) -> None:
    data = packed({"x": torch.zeros(30 << 20, dtype=torch.uint8)})
    small = rezip(data, {}, deflate=("data/0",))
    assert len(small) < 100_000
    assert float(solo.load(write(tmp_path, "ok.pt", small))["x"].sum()) == 0  # within the limit
    big = bytearray(small)
    entry = [
        n for n in range(len(big)) if big[n : n + 4] == b"PK\1\2" and b"data/0" in big[n : n + 60]
    ]
    big[entry[0] + 24 : entry[0] + 28] = (1 << 31).to_bytes(4, "little")
    refused(write(tmp_path, "x.pt", bytes(big)))


def test_absurd_counts_and_offsets_in_the_end_record(tmp_path: pathlib.Path) -> None:
    data = packed(GOOD)
    wide = data.rfind(b"PK\6\6")
    for at in (24, 32, 40, 48):
        for value in (0, 1, 1 << 31, 1 << 40, (1 << 64) - 1):
            bad = data[: wide + at] + struct.pack("<Q", value) + data[wide + at + 8 :]
            refused(write(tmp_path, "x.pt", bad))


def test_every_flipped_byte_of_a_small_file_is_survived(tmp_path: pathlib.Path) -> None:
    data = packed(GOOD)
    for at in range(0, len(data), 3):
        bad = bytearray(data)
        bad[at] ^= 0xFF
        try:
            loaded = solo.load(bytearray(bad))
        except CheckpointError:
            continue
        assert set(loaded) == set(GOOD) and all(
            torch.equal(loaded[key], GOOD[key]) for key in GOOD
        ), at


# ---- safetensors ----


def entry(begin: Any, end: Any, shape: Any = (1,), dtype: Any = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (b"{", 0),
        (b"{}x", 0),
        (b"[]", 0),
        (b'{"a":1}', 0),
        (b'{"a":' * 50_000, 0),
        ({"a": entry(0, 1), "b": entry(0, 1)}, 1),
        ({"a": entry(1, 2)}, 2),
        ({"a": entry(0, 1), "b": entry(2, 3)}, 3),
        ({"a": entry(0, 2)}, 2),
        ({"a": entry(0, 1)}, 0),
        ({"a": entry(1, 0, (0,))}, 1),
        ({"a": entry(0, 4, (1 << 62, 1 << 62), "F32")}, 4),
        ({"a": entry(0, 0, (1 << 63, 2))}, 0),
        ({"a": entry(-1, 1)}, 1),
        ({"a": entry(0, 1.0)}, 1),
        ({"a": entry(0, 1, (1.0,))}, 1),
        ({"a": entry(0, 1, (-1,))}, 1),
        ({"a": entry(0, 1, (1,) * 100)}, 1),
        ({"a": {"dtype": "U8", "shape": [1]}}, 1),
        ({"a": {**entry(0, 1), "extra": 1}}, 1),
        (b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}', 1),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
         b'"a":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}', 1),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
         b'"\\u0061":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}', 1),
        (b'{"a\\u0000":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1),
        (b'{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1),
        (b'{"\xff":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1),
        ({"__metadata__": {"a": 1}}, 0),
        ({"__metadata__": "a"}, 0),
        (b'{"a":{"dtype":"U8","shape":[01],"data_offsets":[0,1]}}', 1),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1e0]}}', 1),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551617]}}', 1),
    ],
)  # fmt: skip
def test_hostile_safetensors_headers(tmp_path: pathlib.Path, header: Any, size: int) -> None:
    refused(write(tmp_path, "x.safetensors", safetensors_bytes(header, bytes(size))))


def test_whatever_is_accepted_the_safetensors_package_accepts_with_equal_bytes(
    tmp_path: pathlib.Path,
) -> None:
    import random

    import safetensors.torch

    generator = random.Random(11)
    good = safetensors.torch.save({"a": torch.arange(3.0), "b": torch.ones(2, 2).half()})
    accepted = 0
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(generator.randint(1, 3)):
            bad[generator.randrange(8, len(bad))] = generator.choice(b'0123456789[]{}",:abFU \\')
        try:
            ours = solo.load(bytearray(bad))
        except CheckpointError:
            continue
        theirs = safetensors.torch.load(bytes(bad))
        accepted += 1
        assert set(ours) == set(theirs)
        assert all(load_files.raw(ours[k]) == load_files.raw(theirs[k]) for k in ours)
    assert accepted > 10


# ---- indexes ----


@pytest.mark.parametrize(
    "name",
    ["../x.bin", "/etc/passwd", "a/../../x", "..", "s3://bucket/x", "C:\\x", "a\\..\\..\\x", ""],
)
def test_an_index_cannot_leave_its_directory(tmp_path: pathlib.Path, name: str) -> None:
    text = json.dumps({"weight_map": {"w": name}}).encode()
    error = refused(write(tmp_path, "model.safetensors.index.json", text))
    assert error.reason == "unsafe"


def test_dcp_metadata_runs_nothing_and_stays_inside(tmp_path: pathlib.Path) -> None:
    mark = tmp_path / "ran"
    write(tmp_path, "d/.metadata", pickle.dumps(load_files.Evil(mark), 4))
    assert refused(tmp_path / "d").reason == "unsafe"
    assert not mark.exists()


def test_the_limits_are_met_by_a_process_of_little_memory(tmp_path: pathlib.Path) -> None:
    """A pickle of 4 MB that is nothing but values, within 400 MB of address space growth."""
    path = write(
        tmp_path, "x.pt", with_pickle(packed(GOOD), b"\x80\x02(" + b"]" * (4 << 20) + b"l.")
    )
    script = (
        "import resource, solo, solo.load, torch\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size + (900 << 20),) * 2)\n"
        f"solo.inspect({str(path)!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert pickled_globals(("a", "b"))
