"""Where tensors go: map_location as torch has it, device_map by module names, auto."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import torch
from load_files import packed, write

import solo
from solo import CheckpointError
from solo._load import place

MODEL = {
    "embed.weight": torch.ones(8, 4),
    "layers.0.attn.weight": torch.ones(4, 4),
    "layers.0.mlp.weight": torch.ones(4, 4),
    "layers.1.attn.weight": torch.ones(4, 4),
    "layers.10.attn.weight": torch.ones(4, 4),
    "head.weight": torch.ones(4, 8),
}


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return write(tmp_path, "x.pt", packed(MODEL))


def devices(loaded: dict[str, torch.Tensor]) -> dict[str, str]:
    return {name: tensor.device.type for name, tensor in loaded.items()}


@pytest.mark.parametrize(
    "location", ["cpu", torch.device("cpu"), {"cpu": "cpu"}, {"cuda:0": "cpu"}]
)
def test_the_cpu_in_every_form(path: pathlib.Path, location: Any) -> None:
    assert set(devices(solo.load(path, location)).values()) == {"cpu"}


@pytest.mark.parametrize("location", ["meta", torch.device("meta"), {"cpu": "meta"}])
def test_meta_reads_no_data(path: pathlib.Path, location: Any) -> None:
    loaded = solo.load(path, location, memory_limit=1)
    assert set(devices(loaded).values()) == {"meta"}
    assert loaded["head.weight"].shape == (4, 8)


def test_a_function_is_called_with_each_storage_and_its_tag(path: pathlib.Path) -> None:
    seen = []

    def keep(storage: torch.UntypedStorage, tag: str) -> torch.UntypedStorage:
        seen.append((storage.nbytes(), tag))
        return storage

    loaded = solo.load(path, keep)
    assert sorted(seen) == [(64, "cpu")] * 4 + [(128, "cpu")] * 2
    assert torch.equal(loaded["head.weight"], MODEL["head.weight"])


def test_a_function_that_gives_none_leaves_the_storage(path: pathlib.Path) -> None:
    loaded = solo.load(path, lambda storage, tag: None)
    assert torch.equal(loaded["head.weight"], MODEL["head.weight"])


def test_a_package_that_registered_its_tag_is_asked(path: pathlib.Path) -> None:
    before = list(torch.serialization._package_registry)
    torch.serialization.register_package(
        5, lambda obj: None, lambda obj, tag: obj if tag.startswith("fpga") else None
    )
    try:
        assert torch.equal(solo.load(path, "fpga:1")["head.weight"], MODEL["head.weight"])
    finally:
        torch.serialization._package_registry[:] = before


def test_the_longest_prefix_wins_and_the_empty_one_is_the_rest(path: pathlib.Path) -> None:
    loaded = solo.load(path, device_map={"": "meta", "layers": "cpu", "layers.0.mlp": "meta"})
    assert devices(loaded) == {
        "embed.weight": "meta",
        "layers.0.attn.weight": "cpu",
        "layers.0.mlp.weight": "meta",
        "layers.1.attn.weight": "cpu",
        "layers.10.attn.weight": "cpu",
        "head.weight": "meta",
    }


def test_a_prefix_ends_at_a_dot(path: pathlib.Path) -> None:
    loaded = solo.load(path, device_map={"layers.1": "meta", "": "cpu"})
    assert devices(loaded)["layers.1.attn.weight"] == "meta"
    assert devices(loaded)["layers.10.attn.weight"] == "cpu"


def test_prefixes_fit_the_names_inside_a_nested_dict(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "x.pt", packed({"state_dict": MODEL, "step": 3}))
    loaded = solo.load(path, device_map={"layers.0": "meta", "": "cpu"})
    assert loaded["state_dict"]["layers.0.mlp.weight"].is_meta
    assert not loaded["state_dict"]["head.weight"].is_meta


def test_unused_keys_and_uncovered_names_are_told_at_once(path: pathlib.Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        solo.load(path, device_map={"layer.0": "cpu", "head": "cpu", "embed": "cpu"})
    text = str(caught.value)
    assert "'layer.0' is a prefix of no tensor; near: layers.0" in text
    assert "2 tensors under 'layers.0' have no device" in text


def test_tied_tensors_stay_tied(tmp_path: pathlib.Path) -> None:
    weight = torch.ones(4, 4)
    path = write(tmp_path, "x.pt", packed({"embed.weight": weight, "head.weight": weight}))
    loaded = solo.load(path, device_map={"embed": "cpu", "head": "meta"})
    assert loaded["embed.weight"] is loaded["head.weight"]
    assert loaded["head.weight"].device.type == "cpu"


def test_disk_leaves_tensors_in_the_file(path: pathlib.Path) -> None:
    loaded = solo.load(path, device_map={"": "disk", "head": "cpu"}, memory_limit=200)
    for name, tensor in MODEL.items():
        assert torch.equal(loaded[name], tensor)


def test_auto_fills_devices_in_turn_and_keeps_blocks_whole(path: pathlib.Path) -> None:
    loaded = solo.load(
        path, device_map="auto", max_memory={"meta": 300, "cpu": "1KiB"}
    )  # embed 128, layers.0 128, then layers.1 does not fit any more
    assert devices(loaded) == {
        "embed.weight": "meta",
        "layers.0.attn.weight": "meta",
        "layers.0.mlp.weight": "meta",
        "layers.1.attn.weight": "cpu",
        "layers.10.attn.weight": "cpu",
        "head.weight": "cpu",
    }


def test_auto_overflows_to_disk_or_says_what_does_not_fit(path: pathlib.Path) -> None:
    with pytest.raises(CheckpointError, match="fits nowhere any more"):
        solo.load(path, device_map="auto", max_memory={"cpu": 300})
    loaded = solo.load(path, device_map="auto", max_memory={"cpu": 300, "disk": "1GiB"})
    assert torch.equal(loaded["head.weight"], MODEL["head.weight"])


def test_two_ways_to_place_exclude_each_other(path: pathlib.Path) -> None:
    with pytest.raises(CheckpointError, match="exclude each other"):
        solo.load(path, "cpu", device_map={"": "cpu"})


def test_the_staged_way_gives_the_same_bytes(tmp_path: pathlib.Path) -> None:
    """What other devices get, in pieces through a ring of buffers, tried on the CPU."""
    from solo._load import read, stage, table
    from solo._load.source import LocalSource

    generator = torch.Generator().manual_seed(3)
    obj = {str(n): torch.randint(255, (n,), generator=generator) for n in (5, 3000, 1, 70000, 9)}
    path = write(tmp_path, "x.pt", packed(obj))
    opened = table.open_table(LocalSource(str(path)), table.Options())
    before = stage.RING_BYTES
    stage.RING_BYTES = 10_000
    try:
        rows = range(len(opened.storages))
        cells = stage.to_device(opened, list(rows), torch.device("cpu"), read.How())
    finally:
        stage.RING_BYTES = before
    made = read.make_tensors(opened, cells, range(len(opened.tensors)))
    for name in opened.names:
        assert torch.equal(made[name.tensor], obj[name.name])


def test_cuda_under_torchrun_is_the_ranks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert place.device_of("cuda") == torch.device("cuda:2")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert place.device_of("cuda") == torch.device("cuda:1")  # the script has chosen
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setenv("LOCAL_RANK", "7")
    with pytest.raises(CheckpointError, match="LOCAL_RANK is 7, and this process sees 4"):
        place.device_of("cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    with pytest.raises(CheckpointError, match=r"CUDA_VISIBLE_DEVICES=4,5,6,7 renumbers"):
        place.device_of("cuda:5")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({"map_location": "cuda"}, "map_location='cpu'"),
        ({"map_location": {"cpu": "cuda:0"}}, "map_location['cpu']='cpu'"),
        ({"device_map": "cuda"}, "device_map='cpu'"),
        ({"device_map": {"layers": "cuda:1", "": "cpu"}}, "device_map['layers']='cpu'"),
        ({"device_map": "auto", "max_memory": {"cuda:0": "1GiB"}}, "leave it out of max_memory"),
    ],
    ids=str,
)
def test_a_device_that_is_not_here_is_named_where_the_caller_wrote_it(
    path: pathlib.Path, options: dict[str, Any], fix: str
) -> None:
    with pytest.raises(CheckpointError, match="sees no CUDA device") as caught:
        solo.load(path, **options)
    assert caught.value.fix == fix
