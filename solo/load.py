"""Checkpoints: any format PyTorch people have, onto the devices they have.

``solo.load(path)`` returns what ``torch.load(path, weights_only=True)`` returns, faster and at
one time the memory. ``solo.load.load_into(model, path)`` reads straight into a model.
``solo.load.inspect(path)`` says what is in a file without reading its data.

On the command line: ``python -m solo.load inspect|verify|plan|convert PATH``.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import types
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch

from solo._load import accounting, collection, into, objects, paths, ranks
from solo._load.errors import CheckpointError, Problem
from solo._load.inspection import Inspection, inspect
from solo._load.ledger import release
from solo._load.materialize import materialize
from solo._load.objects import Placeholder
from solo._load.place import DeviceMap, MapLocation
from solo._load.progress import Progress
from solo._load.quiet import no_collection
from solo._load.read import THREADS_MAX, How
from solo._load.save import save
from solo._load.script import load_script
from solo._load.single import Only, Request
from solo._load.stable import when_stable
from solo._load.table import Options

if TYPE_CHECKING:
    from solo._load.paths import Where

__all__ = [
    "CheckpointError",
    "Inspection",
    "Placeholder",
    "Problem",
    "inspect",
    "load",
    "load_into",
    "load_script",
    "materialize",
    "release",
    "save",
]


LIMITS = {"metadata_max": 1 << 63, "tensors_max": 1 << 31, "depth_max": 201}


def load(
    path: Where,
    map_location: MapLocation = None,
    *,
    device_map: DeviceMap = None,
    dtype: torch.dtype | None = None,
    mode: str = "copy",
    mmap: bool | None = None,
    only: Only = None,
    strict: bool = True,
    verify: bool | str = True,
    threads: int = 0,
    direct: str = "auto",
    weights_only: bool = True,
    safe_globals: Sequence[Any] = (),
    tensors_only: bool = False,
    max_memory: Mapping[str, int | str] | None = None,
    no_split: str | Sequence[str] = (),
    memory_limit: int | str | None = None,
    gpu_memory_limit: int | str | None = None,
    empty_cache: bool = False,
    report: dict[str, dict[str, int]] | None = None,
    wait_stable: float = 0.0,
    storage_options: dict[str, Any] | None = None,
    group: Any = None,
    share: str = "auto",
    allow_trailing: bool = False,
    allow_expanded: bool = False,
    limits: dict[str, int] | None = None,
) -> Any:
    """Load a checkpoint.

    Args:
        path: file, directory, index of shards, URL (``s3://``, ``gs://``, ``hdfs://``,
            ``https://``, anything fsspec knows), file object or bytes. A relative path is also
            looked for in the directories of ``SOLO_MODEL_PATH`` and ``MODEL_PATH``.
        map_location: as in ``torch.load``: device, {saved tag: device}, or function of storage
            and tag; also an int (a CUDA index) and ``"saved"``. Default: the CPU, never what
            the file says.
        device_map: {module prefix: device}, the longest prefix wins and ``""`` is the rest;
            ``"auto"`` fills the devices by free memory; a single device. ``"disk"`` leaves
            tensors in the file.
        dtype: floating tensors are converted to it.
        mode: ``"copy"``: private memory, safe against changes of the file; ``"mmap"``: the file
            itself, read when touched (never on network file systems).
        mmap: torch.load's word for the same; None: as ``mode`` says.
        only: module prefixes, patterns, or a function of the name: the result is then a flat
            dict of those tensors.
        strict: with ``only``, finding nothing is an error; in a directory, so are files that
            the index does not name.
        verify: compare the checksums that the file has. ``"all"``: ranks of a ``group`` also
            compare all data that has none, of large files too, which is read twice then.
        threads: that read; 0: those of the machine, at most 8.
        direct: past the page cache: ``"auto"`` (where the file is not in it), ``"never"``,
            ``"always"``.
        weights_only: False lets the file call anything, as torch.load does with it: only for
            files that you trust like code. TORCH_FORCE_WEIGHTS_ONLY_LOAD=1 forbids it.
        safe_globals: classes and functions that the file may name beyond torch's own; those of
            ``torch.serialization.add_safe_globals`` count as well.
        tensors_only: names that are not allowed become ``Placeholder`` objects; nothing is run.
        max_memory: for ``"auto"``: {device: bytes}, in the order in which they are filled.
        no_split: for ``"auto"``: module prefixes that stay on one device.
        memory_limit: bytes of the host that this load may take ("8GiB"); default SOLO_MEMORY.
            What is given here is kept for this process against other loads on this host until it
            ends or calls :func:`release`.
        gpu_memory_limit: the same for each GPU.
        empty_cache: before memory is looked at and afterwards, torch gives cached GPU memory back.
        report: is filled with {device: {"loaded": bytes, "free": bytes left afterwards}}.
        wait_stable: seconds to wait for a file that its writer may still be writing.
        storage_options: for fsspec.
        group: a process group whose ranks load the same file together: they compare its
            fingerprint before any data is used. All of its ranks must call.
        share: with a group, ``"read"``: each rank reads; ``"broadcast"``: one reads and sends;
            ``"auto"``: what a small measurement says is faster.
        allow_trailing: accept bytes behind the end of a safetensors or legacy file.
        allow_expanded: accept tensors that pretend to be far larger than their storage.
        limits: {"metadata_max", "tensors_max", "depth_max": int} in place of the defaults.

    Raises:
        CheckpointError: with ``reason``, ``path``, ``problems`` and ``fix``.
    """
    path = paths.meant(path)
    mode = mode if mmap is None else "mmap" if mmap else "copy"
    if mode not in ("copy", "mmap"):
        raise CheckpointError(
            Problem("argument", f"mode is {mode!r}"), fix="mode='copy' or mode='mmap'"
        )
    _check(direct, share, dtype, limits, threads, wait_stable, verify)
    extra: Mapping[str, Any] = objects.allowed_names(safe_globals)
    if not weights_only:
        extra = objects.anything(path)
    name = _name_of(path)

    def attempt() -> Any:
        with Progress(name) as progress, no_collection():
            request = Request(
                options=Options(
                    tuple(extra),
                    tensors_only or only is not None or not weights_only,
                    allow_trailing,
                    allow_expanded,
                    dict(limits or {}),
                ),
                how=How(threads, direct, bool(verify), mode, progress),
                extra=extra,
                map_location=map_location,
                device_map=device_map,
                max_memory=max_memory,
                no_split=[no_split] if isinstance(no_split, str) else no_split,
                dtype=dtype,
                only=only,
                strict=strict,
                tensors_only=tensors_only,
                memory_limit=memory_limit,
                gpu_memory_limit=gpu_memory_limit,
                storage_options=storage_options,
                wait_stable=wait_stable,
                compare_all=verify == "all",
            )
            label = _label_of(path)
            with accounting.of(request, label, empty_cache=empty_cache, report=report):
                if group is not None:
                    return ranks.load_together(path, request, group, share)
                return collection.load_any(path, request)

    if wait_stable > 0 and group is None:  # ranks wait inside: they must not part
        return when_stable(path, wait_stable, attempt)
    return attempt()


def load_into(
    target: Any,
    path: Where,
    *,
    strict: bool = True,
    strip_prefix: str | None = None,
    verify: bool | str = True,
    threads: int = 0,
    direct: str = "auto",
    device_map: DeviceMap = None,
    dtype: torch.dtype | None = None,
    safe_globals: Sequence[Any] = (),
    memory_limit: int | str | None = None,
    wait_stable: float = 0.0,
    storage_options: dict[str, Any] | None = None,
    group: Any = None,
) -> into.Report:
    """Read a checkpoint straight into the tensors of a module or a dict of tensors.

    No second copy is made where shape, dtype and layout agree. Parameters on ``meta`` are
    replaced by loaded ones (on the CPU, or as ``device_map`` says). Nothing is changed before
    every name and shape was compared.

    Args:
        target: a module, or a mapping of names to tensors.
        path: as for :func:`load`.
        strict: missing or unexpected names are an error; else they are in the report.
        strip_prefix: taken off the names in the file; None: a uniform ``module.`` or
            ``_orig_mod.`` is found and taken off by itself.
        verify, threads, direct, device_map, safe_globals, memory_limit, wait_stable,
            storage_options: as for :func:`load`.
        dtype: of parameters that were on ``meta``.
        group: a process group whose ranks load the same file together: they compare its
            fingerprint first, then each reads what it needs. All of its ranks must call.

    Returns:
        What was loaded, what was missing or unexpected, and which prefix was stripped.

    Raises:
        CheckpointError: all missing, unexpected and misshaped names in one message.
    """
    path = paths.meant(path)
    _check(direct, "auto", dtype, None, threads, wait_stable, verify)
    extra = objects.allowed_names(safe_globals)
    name = _name_of(path)

    def attempt() -> into.Report:
        with Progress(name) as progress, no_collection():
            request = Request(
                options=Options(tuple(extra), True),
                how=How(threads, direct, bool(verify), "copy", progress),
                extra=extra,
                device_map=device_map,
                dtype=dtype,
                memory_limit=memory_limit,
                storage_options=storage_options,
                wait_stable=wait_stable,
                compare_all=verify == "all",
            )
            with accounting.of(request, _label_of(path)):
                return into.load_into(
                    target,
                    path,
                    request,
                    strict=strict,
                    strip_prefix=strip_prefix,
                    group=group,
                )

    if wait_stable > 0 and group is None:
        return when_stable(path, wait_stable, attempt)
    return attempt()


def _check(
    direct: str,
    share: str,
    dtype: Any,
    limits: dict[str, int] | None,
    threads: int,
    wait_stable: float,
    verify: bool | str,
) -> None:
    """Arguments, before anything is opened."""
    problems = []
    if type(threads) is not int or not 0 <= threads <= THREADS_MAX:
        text = f"threads is {threads!r}, not 0 to {THREADS_MAX}"
        problems.append(Problem("argument", text))
    for name, value, known in (
        ("direct", direct, ("auto", "never", "always")),
        ("share", share, ("auto", "read", "broadcast")),
        ("verify", verify, (True, False, "all")),
    ):
        if value not in known:
            problems.append(Problem("argument", f"{name} is {value!r}, not one of {known}"))
    if not isinstance(wait_stable, (int, float)) or not 0 <= wait_stable < math.inf:
        problems.append(Problem("argument", f"wait_stable is {wait_stable!r}, not seconds"))
    if dtype is not None and not isinstance(dtype, torch.dtype):
        problems.append(Problem("argument", f"dtype is {dtype!r}, not a torch.dtype"))
    for name, limit in (limits or {}).items():
        if name not in LIMITS or type(limit) is not int or not 0 <= limit < LIMITS[name]:
            most = LIMITS.get(name)
            text = f"0 to {most - 1}" if most else f"one of {', '.join(LIMITS)}"
            problems.append(Problem("argument", f"limits has {name!r}: {limit!r}, not {text}"))
    if problems:
        raise CheckpointError(problems)


def _name_of(path: Any) -> str:
    try:
        return os.path.basename(os.fsdecode(path)) or os.fsdecode(path)
    except TypeError:
        return str(getattr(path, "name", type(path).__name__))


def _label_of(path: Any) -> str:
    """The whole path, for other processes of this host to read."""
    try:
        text = os.fsdecode(path)
    except TypeError:
        return _name_of(path)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


class _Callable(types.ModuleType):
    """So that ``solo.load(...)`` and ``solo.load.inspect(...)`` are one name."""

    __signature__ = signature(load)

    if TYPE_CHECKING:  # what a checker of types is to find in ``solo.load``
        __call__ = staticmethod(load)
        load = staticmethod(load)
        load_into = staticmethod(load_into)
        load_script = staticmethod(load_script)
        inspect = staticmethod(inspect)
        materialize = staticmethod(materialize)
        release = staticmethod(release)
        save = staticmethod(save)
        CheckpointError = CheckpointError
        Inspection = Inspection
        Placeholder = Placeholder
        Problem = Problem
    else:

        def __call__(self, *args: Any, **options: Any) -> Any:
            return load(*args, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        """So that ``pool.map(solo.load, paths)`` can send it."""
        return (importlib.import_module, (self.__name__,))


if TYPE_CHECKING:
    callable_module: _Callable  # this one

if __name__ == "__main__":
    from solo._load.cli import main

    sys.exit(main())

sys.modules[__name__].__class__ = _Callable
