"""Optimizer state follows its parameter over a device map; "meta" is the second device."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from load_files import packed, write

import solo
from solo import CheckpointError


def model() -> torch.nn.Module:
    """Convolution, norms whose buffers have a parameter's size, and a tied pair."""
    made = torch.nn.Module()
    made.stem = torch.nn.Sequential(torch.nn.Conv1d(4, 4, 1), torch.nn.BatchNorm1d(4))
    made.body = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
    made.head = torch.nn.Linear(4, 4)
    made.head.weight = made.body[1].weight
    return made


def trained(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}


def devices_of_state(loaded: dict[str, Any], net: torch.nn.Module) -> dict[str, set[str]]:
    """By parameter, the devices of what the optimizer keeps of it (but its step)."""
    numbers = [n for group in loaded["optimizer"]["param_groups"] for n in group["params"]]
    state = loaded["optimizer"]["state"]
    names = {id(p): name for name, p in net.named_parameters()}
    order = loaded["order"] if "order" in loaded else list(names.values())
    return {
        name: {t.device.type for kind, t in state[number].items() if kind != "step"}
        for number, name in zip(numbers, order, strict=True)
    }


def check(loaded: dict[str, Any], net: torch.nn.Module) -> None:
    for name, devices in devices_of_state(loaded, net).items():
        assert devices == {loaded["model"][name].device.type}, name
    steps = [values["step"] for values in loaded["optimizer"]["state"].values()]
    assert all(step.device.type == "cpu" for step in steps)


MAP = {"stem": "meta", "body": "cpu", "head": "meta"}


@pytest.mark.parametrize("format", ["zip", "legacy"])
def test_state_goes_where_its_parameter_goes(tmp_path: pathlib.Path, format: str) -> None:
    net = model()
    obj = trained(net, torch.optim.AdamW(net.parameters(), amsgrad=True))
    data = packed(obj, _use_new_zipfile_serialization=format == "zip")
    loaded = solo.load(write(tmp_path, "x.pt", data), device_map=MAP)
    check(loaded, net)
    assert loaded["model"]["stem.0.weight"].is_meta and not loaded["model"]["body.0.weight"].is_meta


def test_groups_in_another_order_than_the_model_are_followed(tmp_path: pathlib.Path) -> None:
    net = model()
    named = list(net.named_parameters())
    groups = [[(n, p) for n, p in named if (p.ndim > 1) is many] for many in (True, False)]
    optimizer = torch.optim.AdamW([{"params": [p for _, p in group]} for group in groups])
    obj = trained(net, optimizer)
    obj["order"] = [name for group in groups for name, _ in group]
    check(solo.load(write(tmp_path, "x.pt", packed(obj)), device_map=MAP), net)


def test_names_that_an_optimizer_was_given_are_used(tmp_path: pathlib.Path) -> None:
    net = model()
    backwards = list(net.named_parameters())[::-1]  # sizes alone would mislead
    obj = trained(net, torch.optim.Adam(backwards))
    obj["order"] = [name for name, _ in backwards]
    check(solo.load(write(tmp_path, "x.pt", packed(obj)), device_map=MAP), net)


def test_state_under_names_is_followed(tmp_path: pathlib.Path) -> None:
    """As torch.distributed.checkpoint.state_dict saves it."""
    weights = {"a.w": torch.ones(3), "b.w": torch.ones(3)}
    state = {name: {"momentum_buffer": torch.ones(3)} for name in weights}
    obj = {"model": weights, "optim": {"state": state, "param_groups": [{"params": list(weights)}]}}
    loaded = solo.load(write(tmp_path, "x.pt", packed(obj)), device_map={"a": "meta", "b": "cpu"})
    state = loaded["optim"]["state"]
    assert state["a.w"]["momentum_buffer"].is_meta and not state["b.w"]["momentum_buffer"].is_meta


def test_two_models_with_an_optimizer_each_are_told_apart(tmp_path: pathlib.Path) -> None:
    one, other = torch.nn.Linear(3, 5), torch.nn.Linear(5, 3)

    def part(net: torch.nn.Module) -> dict[str, Any]:
        return trained(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))

    obj = {"one": part(one), "other": part(other)}
    path = write(tmp_path, "x.pt", packed(obj))
    loaded = solo.load(path, device_map={"one.model": "cpu", "other.model": "meta"})
    for name, kind in (("one", "cpu"), ("other", "meta")):
        for values in loaded[name]["optimizer"]["state"].values():
            assert values["momentum_buffer"].device.type == kind


def test_a_key_of_its_own_decides_for_the_optimizer(tmp_path: pathlib.Path) -> None:
    net = torch.nn.Linear(4, 4)
    path = write(tmp_path, "x.pt", packed(trained(net, torch.optim.Adam(net.parameters()))))
    loaded = solo.load(path, device_map={"model": "meta", "optimizer": "cpu"})
    tensors: Iterable[Any] = loaded["optimizer"]["state"][0].values()
    assert all(t.device.type == "cpu" for t in tensors)
    assert loaded["model"]["weight"].is_meta


def test_state_that_fits_no_parameter_must_be_placed_by_name(tmp_path: pathlib.Path) -> None:
    group = {"params": [0]}
    optimizer = {"state": {0: {"sum": torch.ones(7)}}, "param_groups": [group]}
    obj = {"model": {"w": torch.ones(3)}, "optimizer": optimizer}
    path = write(tmp_path, "x.pt", packed(obj))
    with pytest.raises(CheckpointError, match=r"1 tensor under 'optimizer\.state' has no device"):
        solo.load(path, device_map={"w": "cpu"})
    assert solo.load(path, device_map={"w": "meta", "": "cpu"})["model"]["w"].is_meta


def test_auto_counts_the_state_with_its_layer(tmp_path: pathlib.Path) -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(8, 8, bias=False) for _ in range(4)))
    path = write(tmp_path, "x.pt", packed(trained(net, torch.optim.Adam(net.parameters()))))
    layer = 3 * 8 * 8 * 4  # weights, two moments
    room = {"meta": 2 * layer, "cpu": "1MiB"}
    loaded = solo.load(path, device_map="auto", max_memory=room)
    check(loaded, net)
    kinds = [tensor.device.type for tensor in loaded["model"].values()]
    assert kinds == ["meta", "meta", "cpu", "cpu"]
