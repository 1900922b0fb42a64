"""Object stores through fsspec; many ranks; the command line."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from load_files import assert_same, objects, packed, write

import solo
from solo import CheckpointError

fsspec = pytest.importorskip("fsspec")

BIG = {str(n): torch.arange(n, dtype=torch.int32) for n in (10, 70_000, 3, 900_000)}


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()


@pytest.mark.parametrize("name", ["nested", "optimizer", "views", "empty"])
@pytest.mark.parametrize("format", ["zip", "legacy"])
def test_any_fsspec_address_is_read(memory: Any, name: str, format: str) -> None:
    obj = objects()[name]
    memory.pipe("/m/x.pt", packed(obj, _use_new_zipfile_serialization=format == "zip"))
    assert_same(solo.load("memory://m/x.pt"), obj)


def test_large_objects_come_in_parallel_ranges(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from solo._load import source

    monkeypatch.setattr(source, "RANGE_BYTES", 100_000)
    memory.pipe("/m/x.pt", packed(BIG))
    asked: list[tuple[int, int]] = []
    whole = type(memory).cat_file

    def counted(self: Any, path: str, start: int = 0, end: int = 0, **rest: Any) -> bytes:
        asked.append((start, end))
        return whole(self, path, start=start, end=end, **rest)  # type: ignore[no-any-return]

    monkeypatch.setattr(type(memory), "cat_file", counted)
    assert_same(solo.load("memory://m/x.pt"), BIG)
    assert max(end - start for start, end in asked) <= source.EDGE_BYTES
    assert len(asked) > 30
    some = solo.load("memory://m/x.pt", only="70000")
    assert torch.equal(some["70000"], BIG["70000"])


def test_a_damaged_or_missing_object_is_told(memory: Any) -> None:
    data = bytearray(packed(BIG))
    data[len(data) // 2] ^= 1
    memory.pipe("/m/x.pt", bytes(data))
    with pytest.raises(CheckpointError) as caught:
        solo.load("memory://m/x.pt")
    assert caught.value.reason == "checksum" and "900000" in str(caught.value)
    with pytest.raises(CheckpointError) as caught:
        solo.load("memory://m/other.pt")
    assert caught.value.reason == "not_found"
    with pytest.raises(CheckpointError, match="fsspec does not know this address"):
        solo.load("nonsense://m/other.pt")


def test_an_index_in_a_store_finds_its_shards_beside_it(
    memory: Any, tmp_path: pathlib.Path
) -> None:
    for path in solo.save(BIG, tmp_path, shard_size="4MiB", format="safetensors"):
        memory.pipe("/m/" + pathlib.Path(path).name, pathlib.Path(path).read_bytes())
    loaded = solo.load("memory://m/model.safetensors.index.json")
    assert set(loaded) == set(BIG) and all(torch.equal(loaded[k], BIG[k]) for k in BIG)


def test_load_into_reads_from_a_store(memory: Any) -> None:
    memory.pipe("/m/x.pt", packed(BIG))
    target = {key: torch.zeros_like(value) for key, value in BIG.items()}
    solo.load_into(target, "memory://m/x.pt")
    assert_same(target, BIG)


def test_s3_is_read_by_ranges(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    server_module = pytest.importorskip("moto.server")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        options = {"endpoint_url": f"http://{host}:{port}"}
        system = fsspec.filesystem("s3", **options)
        system.mkdir("models")
        system.pipe("models/x.pt", packed(BIG))
        assert_same(solo.load("s3://models/x.pt", storage_options=options), BIG)
        found = solo.inspect("s3://models/x.pt", storage_options=options)
        assert found.names == list(BIG)
    finally:
        server.stop()


@pytest.mark.parametrize(("scheme", "package"), [("gs", "gcsfs"), ("hdfs", "pyarrow")])
def test_a_store_whose_package_is_missing_says_which(
    monkeypatch: pytest.MonkeyPatch, scheme: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(CheckpointError) as caught:
        solo.load(f"{scheme}://bucket/x.pt")
    assert caught.value.reason == "missing_package" and package in caught.value.fix


# ---- ranks ----


def test_ranks_agree_and_each_reads(tmp_path: pathlib.Path) -> None:
    path = str(write(tmp_path, "x.pt", packed(BIG)))
    for share in ("auto", "read", "broadcast"):

        def body(rank: int, world: int, share: str = share) -> bool:
            loaded = solo.load(path, group=dist.group.WORLD, share=share)
            return all(torch.equal(loaded[key], BIG[key]) for key in BIG)

        assert ranks.run(body, 2, backend="gloo") == [True, True]


def test_a_rank_with_another_file_is_named_before_data_is_read(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "0/x.pt", packed({"x": torch.ones(3)}))
    write(tmp_path, "1/x.pt", packed({"x": torch.zeros(3)}))

    def body(rank: int, world: int) -> str:
        with pytest.raises(CheckpointError) as caught:
            solo.load(tmp_path / str(rank) / "x.pt", group=dist.group.WORLD)
        return str(caught.value)

    for text in ranks.run(body, 2, backend="gloo"):
        assert (
            "rank 1 on" in text and str(tmp_path / "1" / "x.pt") in text and "fingerprint" in text
        )


def test_files_without_checksums_are_told_apart_by_their_data(tmp_path: pathlib.Path) -> None:
    for rank in (0, 1):
        solo.save({"x": torch.full((1000,), float(rank))}, tmp_path / f"{rank}.safetensors")

    def body(rank: int, world: int) -> bool:
        try:
            solo.load(tmp_path / f"{rank}.safetensors", group=dist.group.WORLD)
        except CheckpointError as error:
            return error.reason == "rank"
        return False

    assert ranks.run(body, 2, backend="gloo") == [True, True]


def test_a_single_other_byte_of_a_file_without_checksums_is_seen(tmp_path: pathlib.Path) -> None:
    data = torch.zeros(500_000)
    for rank in (0, 1):
        data[123_456] = rank
        solo.save({"x": data}, tmp_path / f"{rank}.safetensors")

    def body(rank: int, world: int) -> str:
        with pytest.raises(CheckpointError) as caught:
            target = {"x": torch.full((500_000,), -1.0)}
            solo.load_into(target, tmp_path / f"{rank}.safetensors", group=dist.group.WORLD)
        assert (target["x"] == -1).all()
        return caught.value.reason

    assert ranks.run(body, 2, backend="gloo") == ["rank", "rank"]


def test_a_byte_between_two_samples_is_seen_by_verify_all(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from solo._load import ranks as loading

    monkeypatch.setattr(loading, "WHOLE_BYTES", 0)
    monkeypatch.setattr(loading, "STEP_BYTES", 1 << 20)
    data = torch.zeros(500_000)
    for rank in (0, 1):
        data[123_456] = rank
        solo.save({"x": data}, tmp_path / f"{rank}.safetensors")

    def body(rank: int, world: int) -> list[str]:
        path, seen = tmp_path / f"{rank}.safetensors", []
        into = functools.partial(solo.load_into, {"x": data.clone()})
        for verify, load in itertools.product((True, "all"), (solo.load, into)):
            try:
                load(path, group=dist.group.WORLD, verify=verify)
                seen.append("")
            except CheckpointError as error:
                seen.append(error.reason)
        return seen

    assert ranks.run(body, 2, backend="gloo") == [["", "", "rank", "rank"]] * 2
    prints = {_verified(tmp_path / f"{rank}.safetensors") for rank in (0, 1)}
    assert len(prints) == 2


def _verified(path: pathlib.Path) -> str:
    """The fingerprint that the command line prints."""
    from solo._load.cli import main

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert main(["verify", str(path)]) == 0
    return text.getvalue().split("fingerprint ")[1]


def test_large_files_are_sampled_from_begin_to_end() -> None:
    from solo._load import ranks as loading

    size = loading.STEP_BYTES * 5 + 1000
    samples = list(loading._samples(size))
    assert samples[0][0] == 0 and samples[-1][0] + samples[-1][1] == size and len(samples) == 6
    assert list(loading._samples(10)) == [(0, 10)]
    pieces = list(loading._pieces(loading.PIECE_BYTES + 5))
    assert sum(count for _, count in pieces) == loading.PIECE_BYTES + 5


def test_ranks_wait_together_for_an_unfinished_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(packed(BIG)[:1000])

    def body(rank: int, world: int) -> str:
        with pytest.raises(CheckpointError) as caught:
            solo.load(path, group=dist.group.WORLD, wait_stable=0.1 if rank else 3)
        return str(caught.value)

    for text in ranks.run(body, 2, backend="gloo"):
        assert "rank 1 on" in text and "still being written" in text


def test_a_rank_without_the_file_gets_it_from_rank_0(tmp_path: pathlib.Path) -> None:
    obj = objects()["optimizer"]
    write(tmp_path, "x.pt", packed(obj))

    def body(rank: int, world: int) -> bool:
        path = tmp_path / ("x.pt" if rank == 0 else "nowhere.pt")
        loaded = solo.load(path, group=dist.group.WORLD, share="broadcast")
        assert_same(loaded["model"], obj["model"])
        return True

    assert ranks.run(body, 2, backend="gloo") == [True, True]

    def failing(rank: int, world: int) -> str:
        with pytest.raises(CheckpointError) as caught:
            solo.load(tmp_path / ("x.pt" if rank == 0 else "no.pt"), group=dist.group.WORLD,
                      share="read")  # fmt: skip
        return str(caught.value)

    assert all("rank 1 on" in text for text in ranks.run(failing, 2, backend="gloo"))


def test_what_one_rank_cannot_place_stops_all_of_them(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "x.pt", packed(BIG))

    def body(rank: int, world: int) -> list[str]:
        texts = []
        for share in ("read", "broadcast"):
            with pytest.raises(CheckpointError) as caught:
                limit = 100 if rank == 1 else None
                solo.load(path, group=dist.group.WORLD, share=share, memory_limit=limit)
            texts.append(str(caught.value))
        return texts

    for texts in ranks.run(body, 2, backend="gloo"):
        assert all("rank 1 on" in text and "100 B are allowed" in text for text in texts)


def test_ranks_that_load_to_one_gpu_are_warned() -> None:
    from solo._load.ranks import shared_devices

    everyone = [
        {"rank": 0, "host": "a", "devices": ["GPU-1", "GPU-2"]},
        {"rank": 1, "host": "a", "devices": ["GPU-1"]},
        {"rank": 2, "host": "b", "devices": ["GPU-2"]},
    ]
    (text,) = shared_devices(everyone)
    assert "ranks 0, 1 on a all load to the GPU GPU-1" in text


# ---- command line ----


def command(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "solo.load", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
    )


def test_inspect_lists_tensors_for_people_and_programs(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "x.pt", packed({"model": {"w": torch.ones(2, 3)}, "step": 1}))
    done = command("inspect", path)
    assert done.returncode == 0 and "model.w  [2, 3] float32  24 B" in done.stdout
    row = json.loads(command("inspect", "--json", path).stdout)["tensors"][0]
    assert row["name"] == "model.w" and row["shape"] == [2, 3]


def test_verify_tells_whole_from_damaged(tmp_path: pathlib.Path) -> None:
    data = bytearray(packed(BIG))
    path = write(tmp_path, "x.pt", bytes(data))
    done = command("verify", path)
    assert done.returncode == 0 and "checksums agree" in done.stdout
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    done = command("verify", path)
    assert done.returncode == 1 and "[checksum]" in done.stderr and "Traceback" not in done.stderr


def test_plan_prints_bytes_by_device_and_loads_nothing(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "x.pt", packed(BIG))
    done = command("plan", path, "--device-map", '{"70000": "meta", "": "cpu"}')
    assert done.returncode == 0 and "meta: 273.4 KiB" in done.stdout and "fits" in done.stdout
    done = command("plan", path, "--memory", "1MiB")
    assert done.returncode == 1 and "cpu needs 3.7 MiB, 1.0 MiB are allowed" in done.stderr
    assert command("plan", path, SOLO_MEMORY="1000").returncode == 1


def test_convert_changes_format_dtype_and_files(tmp_path: pathlib.Path) -> None:
    obj = {"model": {"w": torch.ones(10, 10), "n": torch.arange(3)}, "step": 1}
    path = write(tmp_path, "x.pt", packed(obj))
    done = command("convert", path, tmp_path / "y.safetensors", "--flat", "--dtype", "bfloat16")
    assert done.returncode == 0, done.stderr
    loaded = solo.load(tmp_path / "y.safetensors")
    assert loaded["model.w"].dtype == torch.bfloat16 and loaded["model.n"].dtype == torch.int64
    nested = command("convert", path, tmp_path / "z.safetensors")
    assert nested.returncode == 2 and "--flat" in nested.stderr
    done = command("convert", tmp_path / "y.safetensors", tmp_path / "d", "--shard-size", "210")
    assert done.returncode == 0, done.stderr
    assert_same(solo.load(tmp_path / "d")["model.n"], obj["model"]["n"])
