"""Targets of load_into that are not plain tensors: filled right, or refused by name."""

from __future__ import annotations

import logging
import mmap
import pathlib
import warnings
from typing import Any

import pytest
import torch
from load_files import packed, write

import solo
from solo import CheckpointError

X = torch.arange(12.0).reshape(3, 4)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return write(tmp_path, "x.pt", packed({"x": X}))


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(3, 3, bias=False)
        self.b = torch.nn.Linear(3, 3, bias=False)
        self.b.weight = self.a.weight


class Sub(torch.Tensor):
    pass


def in_inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(3, 4)


FILLED: dict[str, Any] = {
    "transposed": lambda: torch.zeros(4, 3).t(),
    "every second": lambda: torch.zeros(6, 8)[::2, ::2],
    "requires grad": lambda: torch.zeros(3, 4, requires_grad=True),
    "not a leaf": lambda: torch.zeros(3, 4, requires_grad=True) * 2,
    "inference": in_inference,
    "negated": lambda: torch.ones(3, 4)._neg_view(),  # type: ignore[attr-defined]
    "imaginary part of a conjugate": lambda: torch.zeros(3, 4, dtype=torch.complex64).conj().imag,
    "subclass": lambda: torch.zeros(3, 4).as_subclass(Sub),
    "other dtype": lambda: torch.zeros(3, 4, dtype=torch.int64),
}


@pytest.mark.parametrize("name", FILLED)
def test_an_unusual_target_is_filled(path: pathlib.Path, name: str) -> None:
    target = FILLED[name]()
    solo.load_into({"x": target}, path)
    assert target.detach().tolist() == X.tolist()


def fake() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(3, 4)


REFUSED: dict[str, Any] = {
    "is expanded": lambda: torch.zeros(16).as_strided((3, 4), (1, 1)),
    "is quantized": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
    "has the layout nested": lambda: torch.nested.nested_tensor([torch.zeros(4)] * 3),
    "has no memory": fake,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", REFUSED)
def test_a_target_that_cannot_be_filled_is_refused(path: pathlib.Path, words: str) -> None:
    with pytest.raises(solo.CheckpointError, match=f"'x' {words}") as caught:
        solo.load_into({"x": REFUSED[words]()}, path)
    assert caught.value.reason == "argument"


def test_inside_vmap_there_is_nothing_to_fill(path: pathlib.Path) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        solo.load_into({"x": x}, path)
        return x

    with pytest.raises(solo.CheckpointError, match="has no memory"):
        torch.vmap(body)(torch.zeros(2, 3, 4))


def test_tied_parameters_on_meta_stay_tied_if_the_file_has_one_name(
    tmp_path: pathlib.Path,
) -> None:
    path = write(tmp_path, "t.pt", packed({"a.weight": torch.full((3, 3), 5.0)}))
    with torch.device("meta"):
        model = Tied()
    report = solo.load_into(model, path)
    assert model.a.weight is model.b.weight and not report.still_meta
    assert model.b.weight[0, 0] == 5


def test_tied_parameters_take_the_last_of_what_the_file_has_apart(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As load_state_dict does it. Read at once, each would spoil the other's checksum."""
    state = {"a.weight": torch.ones(300, 300), "b.weight": torch.zeros(300, 300)}
    path = write(tmp_path, "t.pt", packed(state))
    shared = torch.full((300, 300), 7.0)
    with caplog.at_level(logging.WARNING):
        solo.load_into({"a.weight": shared, "b.weight": shared}, path)
    assert not shared.any() and "the last one counts" in caplog.text
    part = {"a.weight": shared, "b.weight": shared[:]}
    caplog.clear()
    solo.load_into(part, write(tmp_path, "s.pt", packed(part)))
    assert not caplog.text


def test_a_target_in_memory_that_cannot_be_written_is_told_as_that(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "x.pt", packed({"w": torch.ones(5000)}))
    (tmp_path / "readonly").write_bytes(bytes(20000))
    with (tmp_path / "readonly").open("rb") as stream:
        room = mmap.mmap(stream.fileno(), 20000, prot=mmap.PROT_READ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says so too
        target = torch.frombuffer(room, dtype=torch.float32)
    with pytest.raises(CheckpointError, match="memory that cannot be written") as caught:
        solo.load_into({"w": target}, path)
    assert caught.value.reason == "argument"


def test_a_lazy_module_is_told_to_be_called_first(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "x.pt", packed(torch.nn.Linear(2, 3).state_dict()))
    with pytest.raises(CheckpointError, match="'weight' has no shape yet"):
        solo.load_into(torch.nn.LazyLinear(3), path)
