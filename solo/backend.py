"""The c10d backend "solo": what torch calls to make a process group's backend.

Private names of torch that this rests on, each held down by a test: the constructor
``ProcessGroup(store, rank, size)``, ``ProcessGroup.boxed`` and ``ProcessGroup._get_backend``.
"""

from __future__ import annotations

import datetime
import functools
import pathlib
import re
import threading
from typing import Any

import torch
import torch.distributed as dist

from solo.autoload import devices
from solo.options import Options, activate

_lock = threading.Lock()
_loaded = False


def register() -> None:
    """Make ``init_process_group("solo")`` known to torch; again is harmless."""
    if hasattr(dist, "Backend") and "SOLO" not in dist.Backend._plugins:
        dist.Backend.register_backend("solo", create, extended_api=True, devices=devices())


def create(options: Any, pg_options: Any) -> Any:
    """Make this rank's backend of one process group.

    Args:
        options: what torch knows of the group: store, rank, size, timeout, id.
        pg_options: what the user passed to ``init_process_group(pg_options=...)``, or None;
            ``solo.Options`` with a sync interval switches the interval sync on.

    Raises:
        RuntimeError: no adapter for this torch, or some ranks did not come in time.
    """
    load_adapter()
    timeout = options.timeout
    if isinstance(timeout, (int, float)):
        timeout = datetime.timedelta(seconds=timeout)
    group = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
    torch.ops.solo.open(
        group.boxed(),
        max(1, int(timeout.total_seconds() * 1000)),
        str(options.group_id or "default"),
        _store_host(options.store),
        bool(getattr(options, "enable_reconfigure", False)),  # torch 2.14: formed later
    )
    if isinstance(pg_options, Options):
        activate(pg_options, world_size=options.group_size)
    return group._get_backend(torch.device("cpu"))


def load_adapter() -> None:
    """Load the native adapter once, if it was built for this torch."""
    global _loaded
    with _lock:
        if _loaded:
            return
        path = _adapter_path()
        _check_torch(path.read_bytes(), torch.__version__)
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
        _admit_monitored_barrier()
        _loaded = True


def _adapter_path() -> pathlib.Path:
    here = pathlib.Path(__file__).parent
    found = sorted(here.glob("_c10d.*so"))
    if not found:
        raise RuntimeError(
            "solo was installed without its c10d adapter: install it again where torch is "
            "present (pip install --no-build-isolation .)"
        )
    return found[0]


def _check_torch(adapter: bytes, version: str) -> None:
    """Refuse an adapter of another minor version of torch: its virtual functions differ."""
    built = re.search(rb"solo: built for torch (\d+\.\d+)\0", adapter)
    wanted = ".".join(version.split(".")[:2])
    if built is None or built[1].decode() != wanted:
        found = built[1].decode() if built else "an unknown version"
        raise RuntimeError(
            f'the backend "solo" was built for torch {found}, this is torch {wanted}: '
            "install solo again in this environment (pip install --no-build-isolation .)"
        )


def _store_host(store: Any) -> str:
    """The host that holds the store, which every rank reaches; "" if there is none."""
    while hasattr(store, "underlying_store"):  # a PrefixStore
        store = store.underlying_store
    return str(getattr(store, "host", ""))  # a TCPStore's


def _admit_monitored_barrier() -> None:
    """Let ``dist.monitored_barrier`` accept "solo": torch's own knows gloo by name alone."""
    c10d = dist.distributed_c10d
    original = c10d.monitored_barrier

    @functools.wraps(original)
    def monitored_barrier(
        group: Any = None,
        timeout: datetime.timedelta | float | None = None,
        wait_all_ranks: bool = False,
    ) -> None:
        if c10d._rank_not_in_group(group) or dist.get_backend(group) != "solo":
            original(group, timeout, wait_all_ranks)
            return
        if timeout is None:
            timeout = datetime.timedelta(milliseconds=-1)  # the group's
        elif isinstance(timeout, (int, float)):
            timeout = datetime.timedelta(seconds=timeout)
        group = dist.group.WORLD if group is None else group
        group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    c10d.monitored_barrier = monitored_barrier
    dist.monitored_barrier = monitored_barrier
