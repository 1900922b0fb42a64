"""What a script may ask about its job; outside ``solorun --solo`` it is a job of one node."""

from __future__ import annotations

import os
import weakref

import torch.distributed as dist

from solo import takeover
from solo.merger import Member, Merger

_explicit: weakref.ref[Merger] | None = None  # it holds the model: the script decides how long


def follow(merger: Merger) -> None:
    """Let these functions speak of this sync: the latest that the script made itself."""
    global _explicit
    _explicit = weakref.ref(merger)


def _merger() -> Merger | None:
    active = takeover.active()
    if active is not None and active.merger is not None:
        return active.merger
    return None if _explicit is None else _explicit()


def init(backend: str = "solo") -> None:
    """Set up torch.distributed from torchrun's variables, if that was not done.

    For frameworks that take an initialised group as it is. Does nothing outside torchrun, and
    nothing the second time.

    Args:
        backend: name of a c10d backend.
    """
    if "RANK" in os.environ and "MASTER_ADDR" in os.environ and not dist.is_initialized():
        dist.init_process_group(backend)


def members() -> tuple[Member, ...]:
    """The nodes in the job, in slot order, as of the last merge; () before joining."""
    merger = _merger()
    return () if merger is None else merger.members


def version() -> int:
    """Merges that the job has committed; 0 before the first."""
    merger = _merger()
    return 0 if merger is None else merger.version


def job_step() -> int:
    """Optimizer steps that the job has done, so that a late joiner can forward its schedules."""
    merger = _merger()
    return 0 if merger is None else merger.job_step


def data_rank() -> int:
    """Which shard of the data is this rank's, of ``data_world_size()``, now.

    In an elastic job it changes when members come and go: ask at the start of each epoch.
    """
    split = _split()
    return _rank() if split is None else split[0] + _rank()


def data_world_size() -> int:
    """Into how many shards the data is split now: one per rank of every member."""
    split = _split()
    return _world_size() if split is None else split[1]


def _split() -> tuple[int, int] | None:
    merger = _merger()
    active = takeover.active()
    if merger is None and active is not None:
        expected = active.shards()
        return None if expected is None else expected[2:]
    if merger is None or not merger.config.elastic:
        return None
    return merger.data_shards


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


def _world_size() -> int:
    if dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))
