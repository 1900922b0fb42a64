"""TorchScript: its tensors and constants by name; its code only by explicit word."""

from __future__ import annotations

import logging
import pathlib
import warnings
from typing import Any

import pytest
import torch
from load_files import packed, rezip, write

import solo
import solo.load
from solo import CheckpointError


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        constant = torch.arange(3.0)
        return self.layer(x) * constant + self.shift


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    """A traced module: tensors made while tracing are constants of its code."""
    target = tmp_path / "net.pt"
    constant = torch.tensor([5.0, 6.0, 7.0])
    net = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net.forward = lambda x: net.layer(x) * constant + net.shift  # type: ignore[method-assign]
        torch.jit.save(torch.jit.trace(net, torch.ones(3)), target)
    return target


def test_constants_of_the_code_are_among_the_tensors(path: pathlib.Path) -> None:
    loaded = solo.load(path)
    assert {"layer.weight", "layer.bias", "shift"} < set(loaded)
    constants = [tensor for name, tensor in loaded.items() if name.startswith("CONSTANTS.c")]
    assert any(torch.equal(t, torch.tensor([5.0, 6.0, 7.0])) for t in constants)
    assert "CONSTANTS.c0" in solo.inspect(path).names


def test_map_location_and_device_map_reach_constants(path: pathlib.Path) -> None:
    assert all(tensor.is_meta for tensor in solo.load(path, "meta").values())
    loaded = solo.load(path, device_map={"CONSTANTS": "meta", "": "cpu"})
    assert loaded["CONSTANTS.c0"].is_meta and not loaded["shift"].is_meta


def test_a_module_is_run_by_explicit_word(path: pathlib.Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = solo.load.load_script(path)
        expected = torch.jit.load(path)(torch.ones(3))
    assert torch.equal(module(torch.ones(3)), expected)
    with pytest.raises(CheckpointError, match="sees no CUDA device"):
        solo.load.load_script(path, "cuda")


def test_devices_that_are_literals_of_the_code_are_warned_of(
    tmp_path: pathlib.Path, path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    import zipfile

    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".py"))
        code = archive.read(name)
    short = name.partition("/")[2]
    line = b'# torch.device("cuda:1") torch.device("cpu")\n'
    other = write(tmp_path, "baked.pt", rezip(path.read_bytes(), {short: line + code}))
    with caplog.at_level(logging.WARNING, "solo.load"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solo.load.load_script(other)
    assert "makes tensors on cuda:1 whatever map_location says" in caplog.text


def test_what_holds_no_code_is_told(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "x.pt", packed({"x": torch.ones(1)}))
    with pytest.raises(CheckpointError, match="it is torch zip, which holds no code to run"):
        solo.load.load_script(path)


def test_a_script_in_an_open_file_is_read_to_its_end(path: pathlib.Path) -> None:
    with path.open("rb") as stream:
        loaded: Any = solo.load(stream)
        assert "shift" in loaded and stream.tell() == path.stat().st_size
