"""Which outer step a job takes, and what it asks of the inner optimizers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.optim import Optimizer


def resolve(text: str) -> str:
    """The rule that libsolo is given and that nodes compare.

    "auto" is plain averaging whatever the optimizer: of the rules it alone is safe in short
    runs and at small intervals (docs/algorithms.md has the measurements); SlowMo and Nesterov
    are there for those who ask for them.
    """
    return "avg" if text == "auto" else text


@torch.no_grad()
def zero_inner_momentum(optimizers: Iterable[Optimizer]) -> None:
    """Zero SGD's momentum, which SlowMo replaces by its own; Adam's moments are kept.

    Source: SlowMo, arXiv:1910.00643.
    """
    for optimizer in optimizers:
        for state in optimizer.state.values():
            buffer = state.get("momentum_buffer")
            if isinstance(buffer, torch.Tensor):
                buffer.zero_()


@torch.no_grad()
def renew_nonfinite_state(optimizers: Iterable[Optimizer]) -> int:
    """Forget the inner state of every parameter for which it holds a NaN or Inf.

    The optimizer then begins anew for that parameter: a merge has healed the parameter itself,
    and moments that stay NaN would spoil it again at the next step.

    Returns:
        How many parameters lost their state.
    """
    count = 0
    for optimizer in optimizers:
        for parameter, state in list(optimizer.state.items()):
            floats = [
                v for v in state.values() if isinstance(v, torch.Tensor) and v.is_floating_point()
            ]
            if not all(bool(torch.isfinite(value).all()) for value in floats):
                del optimizer.state[parameter]
                count += 1
    return count


def learning_rate(optimizer: Optimizer) -> float:
    """The inner learning rate of this step; 0 if it is only known on a GPU."""
    rate = optimizer.param_groups[0].get("lr", 0.0) if optimizer.param_groups else 0.0
    if isinstance(rate, torch.Tensor):
        return float(rate) if rate.device.type == "cpu" else 0.0
    return float(rate)
