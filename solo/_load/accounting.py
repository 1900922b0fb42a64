"""Memory around one load: promised before, settled and told afterwards."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import torch

from solo._load import memory
from solo._load.ledger import Claim
from solo._load.single import Request

log = logging.getLogger("solo.load")


@contextlib.contextmanager
def of(
    request: Request,
    name: str,
    *,
    empty_cache: bool = False,
    report: dict[str, dict[str, int]] | None = None,
) -> Iterator[None]:
    """A load happens inside. See ``solo.load`` for ``empty_cache`` and ``report``."""
    request.claim = Claim(name, _bytes(request.memory_limit), _bytes(request.gpu_memory_limit))
    _empty_cache(empty_cache)
    failed = True
    try:
        yield
        failed = False
    finally:
        request.claim.settle(request.loaded, failed)
    _empty_cache(empty_cache)
    if report is not None or log.isEnabledFor(logging.INFO):
        told = memory.report(request.loaded)
        if report is not None:
            report.update(told)
        for device, row in told.items():
            log.info(
                "%s: %s on %s, %s left",
                name,
                memory.human(row["loaded"]),
                device,
                memory.human(row["free"]),
            )


def _bytes(limit: int | str | None) -> int | None:
    return None if limit is None else memory.parse_bytes(limit)


def _empty_cache(wanted: bool) -> None:
    if wanted and torch.cuda.is_available():  # without a context it does nothing
        torch.cuda.empty_cache()
