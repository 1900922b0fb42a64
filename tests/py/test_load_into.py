"""Reading straight into a model; saving; directories of DCP and of shards."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch
from load_files import assert_same, packed, save_dcp, write

import solo
from solo import CheckpointError


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    net = torch.nn.Sequential(
        torch.nn.Embedding(50, 8),
        torch.nn.Linear(8, 8),
        torch.nn.BatchNorm1d(8),
        torch.nn.Linear(8, 50),
    )
    net[3].weight = net[0].weight
    return net


def zeroed() -> torch.nn.Module:
    net = model()
    for tensor in net.state_dict().values():
        tensor.zero_()
    return net


def equal(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return list(left) == list(right) and all(torch.equal(left[k], right[k]) for k in left)


@pytest.mark.parametrize("format", ["pt", "legacy", "safetensors", "shards", "dcp"])
def test_a_model_is_filled_in_place(tmp_path: pathlib.Path, format: str) -> None:
    source, target = model(), zeroed()
    path: Any = tmp_path / "x"
    if format == "legacy":
        torch.save(source.state_dict(), path, _use_new_zipfile_serialization=False)
    elif format == "shards":
        solo.save(source.state_dict(), path, shard_size=2000, format="safetensors")
    elif format == "dcp":
        save_dcp(source.state_dict(), path)
    else:
        solo.save(source.state_dict(), path, format=format)
    before = [p.data_ptr() for p in target.parameters()]
    report = solo.load_into(target, path)
    assert equal(source, target)
    assert [p.data_ptr() for p in target.parameters()] == before
    assert format == "dcp" or report.staged == 0


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module."])
def test_prefixes_of_wrappers_are_taken_off(tmp_path: pathlib.Path, prefix: str) -> None:
    source, target = model(), zeroed()
    state = {prefix + name: value for name, value in source.state_dict().items()}
    report = solo.load_into(target, write(tmp_path, "x", packed({"epoch": 3, "model": state})))
    assert report.stripped == prefix and equal(source, target)


def test_a_wrapped_model_takes_a_plain_file(tmp_path: pathlib.Path) -> None:
    source = model()
    target = torch.nn.Module()
    target.module = zeroed()
    report = solo.load_into(target, write(tmp_path, "x", packed(source.state_dict())))
    assert report.stripped == "-module." and equal(source, target.module)


def test_all_differences_are_in_one_message_and_nothing_was_changed(tmp_path: pathlib.Path) -> None:
    state = model().state_dict()
    del state["1.bias"]
    state["stranger"] = torch.ones(1)
    state["1.weight"] = torch.ones(3, 3)
    target = zeroed()
    path = write(tmp_path, "x", packed(dict(state)))
    with pytest.raises(CheckpointError) as caught:
        solo.load_into(target, path)
    text = str(caught.value)
    assert "the file lacks 1 names: 1.bias" in text
    assert "the target lacks 1 names: stranger" in text
    assert "'1.weight' is (8, 8) in the target and (3, 3) in the file" in text
    assert all(float(p.abs().sum()) == 0 for p in target.parameters())
    state["1.weight"] = torch.ones(8, 8)
    report = solo.load_into(target, write(tmp_path, "x", packed(dict(state))), strict=False)
    assert (report.missing, report.unexpected) == (["1.bias"], ["stranger"])
    assert float(target[1].weight.sum()) == 64


def test_other_dtypes_and_layouts_are_converted(tmp_path: pathlib.Path) -> None:
    values = torch.arange(12.0).reshape(3, 4)
    path = write(tmp_path, "x", packed({"a": values, "b": values, "c": values.t()}))
    target = {
        "a": torch.zeros(3, 4, dtype=torch.float16),
        "b": torch.zeros(4, 3).t(),
        "c": torch.zeros(4, 3),
    }
    report = solo.load_into(target, path)
    assert report.in_place == 0 and report.staged > 0
    assert torch.equal(target["a"].float(), values) and torch.equal(target["b"], values)
    assert torch.equal(target["c"], values.t())


def test_a_meta_model_is_made_real_and_stays_tied(tmp_path: pathlib.Path) -> None:
    source = model()
    with torch.device("meta"):
        target = torch.nn.Sequential(
            torch.nn.Embedding(50, 8),
            torch.nn.Linear(8, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.Linear(8, 50),
        )
        target[3].weight = target[0].weight
        target.register_buffer("mask", torch.ones(3), persistent=False)
    report = solo.load_into(target, write(tmp_path, "x", packed(source.state_dict())))
    assert equal(source, target)
    assert target[3].weight is target[0].weight
    assert isinstance(target[1].weight, torch.nn.Parameter) and target[1].weight.requires_grad
    assert report.still_meta == ["mask"]


def test_gradients_flow_after_loading_in_place(tmp_path: pathlib.Path) -> None:
    source, target = model(), zeroed()
    solo.load_into(target, write(tmp_path, "x", packed(source.state_dict())))
    target(torch.tensor([1, 2])).sum().backward()
    assert target[1].weight.grad is not None


def test_loading_into_a_model_needs_no_second_copy(tmp_path: pathlib.Path) -> None:
    """Peak anonymous memory over that of the empty model, in a process of its own."""
    size = 64 << 20
    path = write(
        tmp_path, "x", packed({"weight": torch.ones(4, size // 16), "bias": torch.ones(4)})
    )
    script = f"""
import threading, torch, solo, solo.load
def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(l for l in lines if l.startswith("RssAnon")).split()[1]) << 10
net = torch.nn.Linear({size // 16}, 4, device="meta").to_empty(device="cpu")
solo.load_into({{"x": torch.zeros(4)}}, bytearray(open({str(tmp_path / "small")!r}, "rb").read()))
before, peak, over = anonymous(), 0, threading.Event()
def watch():
    global peak
    while not over.is_set():
        peak = max(peak, anonymous())
watcher = threading.Thread(target=watch)
watcher.start()
solo.load_into(net, {str(path)!r})
over.set()
watcher.join()
print((max(peak, anonymous()) - before) / {size})
assert float(net.weight.sum()) == {size // 4}
"""
    write(tmp_path, "small", packed({"x": torch.ones(4)}))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= 1.02


# ---- saving ----


@pytest.mark.parametrize("format", ["pt", "safetensors"])
def test_what_is_saved_torch_and_safetensors_read(tmp_path: pathlib.Path, format: str) -> None:
    import safetensors.torch

    obj = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}
    path = tmp_path / "x"
    assert solo.save(obj, path, format=format) == [str(path)]
    read = torch.load(path) if format == "pt" else safetensors.torch.load_file(path)
    assert all(torch.equal(read[key], obj[key]) for key in obj)
    assert_same(solo.load(path)["a"], obj["a"])
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_tied_tensors_are_stored_once_and_come_back_tied(tmp_path: pathlib.Path) -> None:
    weight = torch.ones(1000)
    path = tmp_path / "x.safetensors"
    solo.save({"a": weight, "b": weight, "c": weight[:500]}, path)
    assert path.stat().st_size < 7000
    loaded = solo.load(path)
    assert loaded["a"] is loaded["b"] and set(loaded) == {"a", "b", "c"}


@pytest.mark.parametrize("format", ["pt", "safetensors"])
def test_shards_keep_to_their_size_and_have_an_index(tmp_path: pathlib.Path, format: str) -> None:
    obj = {str(n): torch.full((100,), float(n)) for n in range(10)}
    obj["tied"] = obj["3"]
    written = solo.save(obj, tmp_path / "d", shard_size=1200, format=format)
    assert len(written) == 5
    index = json.loads(pathlib.Path(written[-1]).read_text())
    assert index["metadata"]["total_size"] == 4000
    for where in (tmp_path / "d", written[-1]):
        loaded = solo.load(where)
        assert set(loaded) == set(obj) and all(torch.equal(loaded[k], obj[k]) for k in obj)


def test_a_failed_save_leaves_the_old_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.pt"
    solo.save({"a": torch.ones(1)}, path)
    with pytest.raises(Exception, match=r"lambda|pickle"):
        solo.save({"a": lambda: 0}, path)
    assert float(solo.load(path)["a"]) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["x.pt"]


def test_what_a_format_cannot_hold_is_told(tmp_path: pathlib.Path) -> None:
    with pytest.raises(CheckpointError, match=r"'b' is int, not a dense tensor"):
        solo.save({"a": torch.ones(1), "b": 3}, tmp_path / "x.safetensors")


# ---- shards ----


def shards(folder: pathlib.Path) -> tuple[dict[str, torch.Tensor], list[str]]:
    obj = {str(n): torch.full((100,), float(n)) for n in range(4)}
    return obj, solo.save(obj, folder, shard_size=1000, format="safetensors")


def test_missing_shards_are_all_named_before_reading(tmp_path: pathlib.Path) -> None:
    _, written = shards(tmp_path)
    for path in written[:2]:
        pathlib.Path(path).unlink()
    with pytest.raises(CheckpointError) as caught:
        solo.load(tmp_path)
    assert caught.value.reason == "missing" and len(caught.value.problems) == 2
    assert "model-00001-of-00002" in str(caught.value) and "model-00002-of-00002" in str(
        caught.value
    )


def test_an_index_and_its_shards_must_agree_in_both_directions(tmp_path: pathlib.Path) -> None:
    _, written = shards(tmp_path)
    index = json.loads(pathlib.Path(written[-1]).read_text())
    moved = index["weight_map"]
    moved["0"], moved["ghost"] = moved["3"], moved["0"]
    pathlib.Path(written[-1]).write_text(json.dumps(index))
    with pytest.raises(CheckpointError) as caught:
        solo.load(tmp_path)
    text = str(caught.value)
    assert "lacks 'ghost'" in text and "lacks '0'" in text and "holds '0'" in text


def test_shards_without_an_index_are_one_checkpoint_unless_names_repeat(
    tmp_path: pathlib.Path,
) -> None:
    obj, written = shards(tmp_path)
    pathlib.Path(written[-1]).unlink()
    assert set(solo.load(tmp_path)) == set(obj)
    pathlib.Path(tmp_path / "copy.safetensors").write_bytes(pathlib.Path(written[0]).read_bytes())
    with pytest.raises(CheckpointError, match="not shards of one checkpoint"):
        solo.load(tmp_path)


def test_a_directory_prefers_its_index_and_an_empty_one_is_told(tmp_path: pathlib.Path) -> None:
    obj, _ = shards(tmp_path)
    torch.save({"other": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    assert set(solo.load(tmp_path)) == set(obj)
    (tmp_path / "none").mkdir()
    with pytest.raises(CheckpointError, match="directory without a checkpoint"):
        solo.load(tmp_path / "none")


def test_only_and_device_map_reach_over_all_shards(tmp_path: pathlib.Path) -> None:
    shards(tmp_path)
    assert set(solo.load(tmp_path, only=["1", "3"])) == {"1", "3"}
    loaded = solo.load(tmp_path, device_map={"0": "meta", "3": "meta", "": "cpu"})
    assert [loaded[str(n)].is_meta for n in range(4)] == [True, False, False, True]
    with pytest.raises(CheckpointError, match="names no tensor"):
        solo.load(tmp_path, only="9")
