"""Whether memory will hold the model, its gradients, optimizer state and the sync's buffers."""

from __future__ import annotations

import pytest
import torch

from solo import _C, memory
from solo.config import Config
from solo.errors import InvalidArgument, OutOfMemory

MIB = 1 << 20


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 100 MiB left, and a rank that uses 10 MiB."""
    monkeypatch.setattr(memory, "available", lambda: (100 * MIB, "free on the machine"))
    monkeypatch.setattr(memory, "_resident", lambda: 10 * MIB)


def parameters(count: int) -> list[torch.Tensor]:
    """Parameters of so many MiB, which need three times as much for gradients and Adam."""
    return [torch.nn.Parameter(torch.empty(count * MIB // 4))]


def test_what_fits_is_fine() -> None:
    memory.check(Config(), parameters(10), [], 60 * MIB)
    memory.check(Config(memory=101 * MIB), parameters(10), [], 60 * MIB)


def test_all_ranks_of_a_node_must_fit_into_what_the_machine_has_left() -> None:
    with pytest.raises(OutOfMemory, match=r"100.0 MiB of memory left \(free on the machine\)"):
        memory.check(Config(local_world_size=2), parameters(10), [], 60 * MIB)


def test_the_users_limit_is_each_ranks_own() -> None:
    config = Config(memory=90 * MIB, local_world_size=2)
    memory.check(config, parameters(10), [], 30 * MIB)  # 30 + 30 of 80 in the leader
    with pytest.raises(OutOfMemory, match=r"80.0 MiB of memory left \(--memory 90.0 MiB a rank"):
        memory.check(Config(memory=90 * MIB), parameters(10), [], 60 * MIB)


def test_a_model_that_would_be_refused_is_told_before() -> None:
    plain = _C.memory_needed([("weight", 1000, _C.F32, _C.PARAM)])
    assert plain > 3 * 4000
    with pytest.raises(InvalidArgument, match="cannot be merged as 'param'"):
        _C.memory_needed([("counter", 1, _C.I64, _C.PARAM)])
