"""Files that a hostile writer makes, by name: what each of them tries is said beside it."""

from __future__ import annotations

import io
import json
import pathlib
import pickle
import struct
import zipfile

import torch
from load_files import Evil, packed, rezip, safetensors_bytes, with_pickle

GOOD = {"x": torch.ones(3), "y": torch.zeros(2)}
STORAGE = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpu"


# Either half of each leaves FNV-1a in the same state.
HALVES = ["h0rRTGVI", "WBZis3Jp", "PGKhl0aa", "M6vqa9ZJ", "TJAkx9gb", "N5FFjNbA", "o8TVSOHY",
          "W8oqs9Ej", "uOugQ6oh", "18SMgGxy", "s5f1oJzJ", "5jhvC5Wj", "Jsv682gB", "E3LV9BxO",
          "j9WOF6qV", "fvfi47Gu", "mEINA2gw"]  # fmt: skip


def colliding(count: int) -> list[str]:
    """Names of one hash, at most 2^17."""
    return [
        "".join(half[4 * (n >> i & 1) :][:4] for i, half in enumerate(HALVES)) for n in range(count)
    ]


def number(value: int) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def tensor(elements: int, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    """A pickle of {"x": a tensor of storage 0 described like this}."""
    sizes, strides = (b"(" + b"".join(map(number, v)) + b"t" for v in (size, stride))
    storage = STORAGE + number(elements) + b"tQ"
    head = b"\x80\2}X\1\0\0\0xctorch._utils\n_rebuild_tensor_v2\n("
    tail = b"\x89ccollections\nOrderedDict\n)RtRs."
    return head + storage + number(offset) + sizes + strides + tail


def sixty_four(count: int) -> bytes:
    """Tensors of six bytes each, whose shape is in the memo."""
    shape = b"(" + b"K\1" * 64 + b"t"
    head = b"\x80\2ctorch._utils\n_rebuild_tensor_v2\nq\0("
    arguments = STORAGE + b"K\3tQK\0" + shape + shape + b"\x89Ntq\1"
    return head + arguments + b"0h\0h\1R" * count + b"."


def pickles() -> dict[str, bytes]:
    """Put in the place of data.pkl of a good archive."""
    return {
        "nested lists": b"\x80\2" + b"(" * 10_000 + b"l" * 10_000 + b".",
        "nested tuples": b"\x80\2N" + b"\x85" * 10_000 + b".",
        "nested dicts": b"\x80\2" + b"}K\0" * 10_000 + b"N" + b"s" * 10_000 + b".",
        "a memo of 2^28": b"\x80\2Nr\0\0\0\x10.",
        "text of 2^32": b"\x80\2X\xff\xff\xff\xff.",
        "text of 2^62": b"\x80\4\x8d" + struct.pack("<Q", 1 << 62) + b".",
        "bytes of 2^62": b"\x80\4\x8e" + struct.pack("<Q", 1 << 62) + b".",
        "a bytearray of 2^62": b"\x80\5\x96" + struct.pack("<Q", 1 << 62) + b".",
        "a frame of 2^62": b"\x80\4\x95" + struct.pack("<Q", 1 << 62) + b"N.",
        "a long of 2^31": b"\x80\2\x8b\xff\xff\xff\x7f.",
        "bytearray(2^36)": b"\x80\2c__builtin__\nbytearray\n(\x8a\5\0\0\0\0\x10tR.",
        "torch.Tensor(2^36)": b"\x80\2ctorch\nTensor\n(\x8a\5\0\0\0\0\x10tR.",
        "a million empty lists": b"\x80\2(" + b"]" * 1_000_000 + b"l.",
        "a million marks": b"\x80\2" + b"(" * 1_000_000 + b".",
        "a million copies": b"\x80\2N" + b"2" * 1_000_000 + b".",
        "an extension": b"\x80\2\x82\x01.",
        "INST": b"\x80\2(ios\nsystem\n.",
        "OBJ": b"\x80\2(cos\nsystem\no.",
        "a class by keywords": b"\x80\4cos\nsystem\n)}\x92.",
        "an out-of-band buffer": b"\x80\5\x97.",
        "exec": pickle.dumps(Evil(pathlib.Path("/nonexistent/mark")), 2),
        "a call of a list": b"\x80\2])R.",
        "items on a tensor": tensor(3, 0, (3,), (1,))[:-2] + b"K\0K\1ss.",
        "state on a list": b"\x80\2]}b.",
        "no STOP": b"\x80\2N",
        "nothing": b"",
        "two ends": b"\x80\2N.N.",
        "protocol 255": b"\x80\xffN.",
        "a name of 10^5": b"\x80\2c" + b"a" * 100_000 + b"\nb\n.",
        "strides of 0 over 2^40": tensor(3, 0, (1 << 40,), (0,)),
        "strides that overflow": tensor(3, 0, (1 << 31, 1 << 31), (1 << 31, 1)),
        "sizes that overflow": tensor(3, 0, (1 << 62, 4), (0, 0)),
        "a negative size": tensor(3, 0, (-1,), (1,)),
        "a negative stride": tensor(3, 2, (3,), (-1,)),
        "a negative offset": tensor(3, -1, (3,), (1,)),
        "an offset of 2^62": tensor(3, 1 << 62, (3,), (1,)),
        "a storage of 2^60": tensor(1 << 60, 0, (3,), (1,)),
        "a storage larger than its record": tensor(4, 0, (3,), (1,)),
        "65 dimensions": tensor(3, 0, (1,) * 65, (1,) * 65),
        "64 dimensions a million times": sixty_four(1_000_000),
        "a global of 500 letters a million times": b"\x80\4"
        + b"".join(b"cm\n%d\n" % n for n in range(128))
        + b"\x8c\1m\x94X\xf4\1\0\0" + b"n" * 500 + b"\x94" + b"h\0h\1\x93" * 1_000_000 + b".",
        "a megabyte of a key for a million items": b"\x80\2}(X\0\0\x10\0" + b"k" * (1 << 20)
        + b"q\0]q\1" + b"h\0h\1" * 1_000_000 + b"u.",
        "keys of one hash": b"\x80\2(" + b"".join(
            STORAGE.replace(b"\1\0\0\x000", b"\x44\0\0\0" + key.encode()) + b"K\3tQ"
            for key in colliding(1 << 17)
        ) + b"l.",
    }  # fmt: skip


def overlapping() -> bytes:
    """Two records at one place."""
    data = bytearray(packed(GOOD))
    first = data.find(b"PK\1\2", 0)
    entries = []
    while first >= 0:
        name = bytes(
            data[first + 46 : first + 46 + int.from_bytes(data[first + 28 : first + 30], "little")]
        )
        entries.append((name, first))
        first = data.find(b"PK\1\2", first + 4)
    zero = next(at for name, at in entries if name.endswith(b"data/0"))
    one = next(at for name, at in entries if name.endswith(b"data/1"))
    data[one + 42 : one + 46] = data[zero + 42 : zero + 46]
    return bytes(data)


def twice(name: str, content: bytes) -> bytes:
    """A second record of this name behind the others."""
    out = io.BytesIO(packed(GOOD))
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr(name, content)
    return out.getvalue()


def zip_bomb() -> bytes:
    """A gigabyte of zeros in a megabyte."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", tensor(1 << 28, 0, (3,), (1,)), zipfile.ZIP_STORED)
        with archive.open("archive/data/0", "w") as stream:
            for _ in range(64):
                stream.write(bytes(1 << 24))
    return out.getvalue()


def zips() -> dict[str, bytes]:
    good = packed(GOOD)
    end = good.rfind(b"PK\5\6")
    record = bytearray(good)
    record[end + 8 : end + 12] = b"\xff\xfe\xff\xfe"
    offset = bytearray(good)
    offset[end + 16 : end + 20] = b"\xff\xff\xff\xfe"
    bare = b"PK\5\6" + bytes(8) + b"\xff\xff\xff\xff" + b"\xff\xff\xff\xff\0\0"
    return {
        "overlapping records": overlapping(),
        "a record twice": twice("archive/data/0", b"other"),
        "a record twice but for case": twice("archive/DATA/0", b"other"),
        "a record outside": twice("../../etc/passwd", b"x"),
        "an absolute record": twice("/etc/passwd", b"x"),
        "a second top directory": twice("other/data/0", b"x"),
        "a deflated bomb": zip_bomb(),
        "65,000 records claimed": bytes(record),
        "a directory beyond the end": bytes(offset),
        "nothing but an end": bare,
        "a short record": rezip(good, {"data/0": b"x"}),
        "byteorder of a megabyte": rezip(good, {"byteorder": b"l" * (1 << 20)}),
        "an unknown byteorder": rezip(good, {"byteorder": b"middle"}),
        "cut at every hundredth": good[: len(good) // 3],
        "only a head": b"PK\3\4" + bytes(26),
    }


def safetensors() -> dict[str, bytes]:
    def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, object]:
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    one = entry([2], 0, 8)
    return {
        "a header of 2^63": struct.pack("<Q", 1 << 63) + b'{"a":1}',
        "a header of 99 MB in 20 bytes": struct.pack("<Q", 99_000_000) + b'{"a"        ',
        "negative offsets": safetensors_bytes({"a": entry([2], -8, 0)}, bytes(8)),
        "offsets of 2^62": safetensors_bytes({"a": entry([2], 1 << 62, (1 << 62) + 8)}, bytes(8)),
        "sizes that overflow": safetensors_bytes({"a": entry([1 << 62, 16], 0, 8)}, bytes(8)),
        "overlapping data": safetensors_bytes({"a": one, "b": one}, bytes(8)),
        "a hole": safetensors_bytes({"a": one, "b": entry([1], 12, 16)}, bytes(16)),
        "a name twice": safetensors_bytes(
            b'{"a":' + json.dumps(one).encode() + b',"a":' + json.dumps(one).encode() + b"}",
            bytes(8),
        ),
        "nested 10,000 deep": safetensors_bytes(b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
        "a list 10,000 deep": safetensors_bytes(b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}"),
        "a shape of floats": safetensors_bytes({"a": {**one, "shape": [2.0]}}, bytes(8)),
        "no UTF-8": safetensors_bytes(b'{"\xff\xfe":1}'),
        "a number of 10^6 digits": safetensors_bytes(b'{"a":' + b"9" * 1_000_000 + b"}"),
    }


def others() -> dict[str, bytes]:
    legacy = packed(GOOD, _use_new_zipfile_serialization=False)
    at = legacy.rfind((3).to_bytes(8, "little"))
    huge = bytearray(legacy)
    if at >= 0:
        huge[at : at + 8] = (1 << 62).to_bytes(8, "little")
    index = {"weight_map": {"w": "../../../etc/passwd"}}
    many = {"weight_map": {f"n{n}": f"f{n}" for n in range(200_000)}}
    return {
        "legacy with 2^62 elements": bytes(huge),
        "legacy cut": legacy[: len(legacy) // 2],
        "legacy without an object": legacy[:40],
        "an index that climbs": json.dumps(index).encode(),
        "an index of files of one hash": json.dumps(
            {"weight_map": {f"n{n}": name for n, name in enumerate(colliding(90_000))}}
        ).encode(),
        "an index of 200,000 files": json.dumps(many).encode(),
        "JSON 10,000 deep": b"[" * 10_000,
        "random": bytes((n * 7919 >> 3) & 255 for n in range(5000)),
        "a tar": b"storages" + bytes(249) + b"ustar" + bytes(5000),
        "a pickle": pickle.dumps(GOOD, 2),
    }


def corpus() -> dict[str, bytes]:
    files = {f"pickle: {name}": with_pickle(packed(GOOD), p) for name, p in pickles().items()}
    for kind, group in (("zip", zips()), ("safetensors", safetensors()), ("other", others())):
        files.update({f"{kind}: {name}": data for name, data in group.items()})
    return files
