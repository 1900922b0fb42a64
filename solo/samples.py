"""How many samples a step was trained on: the weight of a node in the mean.

Counted where a ``DataLoader`` hands a batch out, while gradients are on: a batch's first
dimension. What an optimizer's step finds counted is what it was trained on. Passes during which
no optimizer steps (an evaluation without ``no_grad``) are taken out again when they end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

_DEPTH = 4  # of containers in a batch; a batch may hold itself


class Fetched:
    """Samples handed out since the last optimizer step."""

    def __init__(self) -> None:
        self._count = 0
        self._known = True

    def add(self, batch: Any) -> int:
        """Count a batch that was handed out just now.

        Returns:
            How many samples were counted.
        """
        if not torch.is_grad_enabled():
            return 0
        size = batch_size(batch)
        self._known = self._known and size is not None
        self._count += size or 0
        return size or 0

    def drop(self, count: int) -> None:
        """So many of them were not for training."""
        self._count = max(0, self._count - count)
        self._known = self._known or self._count == 0

    def take(self) -> int | None:
        """What a step was trained on; None: a batch's size could not be told."""
        count = self._count if self._known else None
        self._count, self._known = 0, True
        return count

    def give_back(self, count: int | None) -> None:
        """That step does not count: the next one does for it."""
        self._known = self._known and count is not None
        self._count += count or 0


def batch_size(batch: Any, depth: int = _DEPTH) -> int | None:
    """The first dimension of the first tensor in a batch; None: there is none."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.ndim else None
    items: Any = ()
    if isinstance(batch, Mapping):
        items = batch.values()
    elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        items = batch
    if depth:
        for item in items:
            if (size := batch_size(item, depth - 1)) is not None:
                return size
    return None
