"""Whether this node's memory will hold the model and what the sync needs beside it.

Asked when the model is taken over, before anything large is allocated: a node that is killed
for memory in the middle of a run says nothing.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from solo.config import Config
from solo.errors import OutOfMemory

_MOMENTS = 2  # tensors of an Adam-like optimizer per parameter, when it has not made them yet
_CGROUP = pathlib.Path("/sys/fs/cgroup")


def check(
    config: Config, tensors: Iterable[Tensor], optimizers: Iterable[Optimizer], sync_bytes: int
) -> None:
    """Raise if gradients, optimizer state and the sync's buffers will not fit.

    Args:
        config: has the user's own limit.
        tensors: the model's tensors, which are in memory already.
        optimizers: those known; their existing state is in memory already.
        sync_bytes: what libsolo will allocate on this node.

    Raises:
        OutOfMemory: with the figures and what to do.
    """
    parameters = {id(t): t for t in tensors if t.requires_grad}
    gradients = sum(t.nbytes for t in parameters.values() if t.grad is None)
    has_state = {id(p) for optimizer in optimizers for p in optimizer.state}
    state = _MOMENTS * sum(t.nbytes for key, t in parameters.items() if key not in has_state)
    on_host = all(t.device.type == "cpu" for t in parameters.values())
    ranks = config.local_world_size
    training = gradients + state if on_host else 0
    free, limit = available()
    needed = training * ranks + sync_bytes
    if needed <= free and on_host and config.memory is not None:  # this rank's own, the leader's
        needed = training + sync_bytes
        free, limit = max(0, config.memory - _resident()), f"--memory {_size(config.memory)} a rank"
    if needed > free:
        raise OutOfMemory(
            f"node {config.node_rank} has {_size(free)} of memory left ({limit}), and needs "
            f"{_size(needed)} more: gradients {_size(gradients)} and optimizer "
            f"state {_size(state)} for each of {ranks} ranks, {_size(sync_bytes)} for the sync "
            "(anchor, momentum, residual, messages). Use a smaller model, fewer ranks "
            "(--device_count), a larger --memory if that is the limit, or a larger machine"
        )
    if not on_host:
        _check_devices(config, list(parameters.values()), gradients + state)


def _check_devices(config: Config, parameters: list[Tensor], needed: int) -> None:
    devices = {p.device for p in parameters if p.is_cuda}
    for device in devices:
        free, total = torch.cuda.mem_get_info(device)
        if config.memory is not None and config.memory < total:
            torch.cuda.set_per_process_memory_fraction(config.memory / total, device)
            free = min(free, config.memory - torch.cuda.memory_reserved(device))
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        if needed > free * max(1, len(devices)):
            raise OutOfMemory(
                f"node {config.node_rank}: {device} has {_size(free)} of {_size(total)} left; "
                f"gradients and optimizer state need {_size(needed)} more. Use a smaller "
                "model, or a GPU with more memory, or see who else holds it (nvidia-smi)"
            )


def available() -> tuple[int, str]:
    """Bytes of host memory left to this node, and which limit says so."""
    limits = [(_meminfo(), "free on the machine")]
    for usage, most in (
        ("memory.current", "memory.max"),
        ("memory/memory.usage_in_bytes", "memory/memory.limit_in_bytes"),
    ):
        used, allowed = _number(_CGROUP / usage), _number(_CGROUP / most)
        if used is not None and allowed is not None and allowed < 1 << 60:
            cache = _inactive_file(_CGROUP / pathlib.Path(usage).parent / "memory.stat")
            limits.append((max(0, allowed - used + cache), "the container's limit"))
    return min(limits)


def _meminfo() -> int:
    try:
        for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 1 << 62  # unknown: no limit


def _inactive_file(path: pathlib.Path) -> int:
    """Bytes of file cache that the kernel gives back when memory is short."""
    try:
        for line in path.read_text().splitlines():
            if line.startswith(("inactive_file ", "total_inactive_file ")):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def _number(path: pathlib.Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None  # no such limit, or "max"


def _resident() -> int:
    try:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")
