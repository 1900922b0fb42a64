"""The leaf that ``import torch`` calls through the entry-point group ``torch.backends``.

It runs in every process that imports torch, so it imports nothing of solo at the top, loads
no native code, and never raises: a broken solo must not take torch with it.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import MutableMapping
from typing import Any


def load() -> None:
    """Register the backend "solo", and install the hooks in a rank that solorun started."""
    try:
        import torch.distributed as dist

        if dist.is_available():
            dist.Backend.register_backend("solo", _create, extended_api=True, devices=devices())
    except Exception as error:
        warnings.warn(f"solo's backend is not available: {error}", stacklevel=2)
    env = os.environ
    wanted = env.get("SOLO_ENABLE") == "1" or "SOLO_AGENT_PID" in env
    if not wanted or env.get("SOLO_DISABLE") == "1":
        return
    try:
        if is_rank():
            _begin(env)
    except Exception as error:
        _stop(error)


def devices() -> list[str]:
    """The kinds of tensors that "solo" is the backend of: "cuda" too, if torch was built for it."""
    import torch

    return ["cpu", "cuda"] if torch.version.cuda or torch.version.hip else ["cpu"]


def _create(options: Any, backend_options: Any) -> Any:
    """Make the backend of one process group; only now is the native code loaded."""
    from solo.backend import create

    return create(options, backend_options)


def is_rank() -> bool:
    """Whether this process is a rank of torchrun, not a child of one.

    A DataLoader's worker or a script's own subprocess has a rank's environment too. A rank is
    the process that torchrun started; with a wrapper in between, the first to import torch.
    """
    env = os.environ
    if "LOCAL_RANK" not in env:
        return False
    rank_pid = env.get("SOLO_RANK_PID")
    if rank_pid is not None and rank_pid != str(os.getpid()):
        return False
    return env.get("SOLO_AGENT_PID") == str(os.getppid()) or not _is_multiprocessing_child()


def _is_multiprocessing_child() -> bool:
    arguments = " ".join(sys.orig_argv)
    if "--multiprocessing-fork" in arguments or "from multiprocessing." in arguments:
        return True
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _begin(env: MutableMapping[str, str]) -> None:
    env["SOLO_RANK_PID"] = str(os.getpid())
    if "SOLO_AGENT_PID" in env:
        from solo import _rank

        _rank.install()
    if env.get("SOLO_ENABLE") == "1":
        from solo import ddp

        ddp.install()


def _stop(error: Exception) -> None:
    """Solo was asked for and cannot start: a rank that trains alone would be worse than none."""
    print(f"solo: error: {error}", file=sys.stderr, flush=True)
    os._exit(78)
