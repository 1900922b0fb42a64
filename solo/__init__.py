"""solo: train one model on machines joined by ordinary networks.

Names are loaded when they are first used: ``import solo`` imports neither torch nor native code.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from solo import errors
    from solo.errors import (
        Aborted,
        Again,
        AuthError,
        Closed,
        Corrupt,
        InUse,
        InvalidArgument,
        JobOver,
        LimitExceeded,
        Mismatch,
        NonFinite,
        NotFound,
        NotSupported,
        OutOfMemory,
        PeerError,
        Refused,
        SoloError,
        SystemFailure,
        TimedOut,
        VersionMismatch,
    )
    from solo.interval import IntervalSync
    from solo.job import data_rank, data_world_size, init, job_step, members, version
    from solo.load import CheckpointError, inspect, load_into, save
    from solo.load import callable_module as load
    from solo.merger import Member
    from solo.options import Options

__version__ = "0.1.0"

_HOME = {
    "Aborted": "solo.errors",
    "Again": "solo.errors",
    "AuthError": "solo.errors",
    "CheckpointError": "solo._load.errors",
    "Closed": "solo.errors",
    "Corrupt": "solo.errors",
    "InUse": "solo.errors",
    "IntervalSync": "solo.interval",
    "InvalidArgument": "solo.errors",
    "JobOver": "solo.errors",
    "LimitExceeded": "solo.errors",
    "Member": "solo.merger",
    "Mismatch": "solo.errors",
    "NonFinite": "solo.errors",
    "NotFound": "solo.errors",
    "NotSupported": "solo.errors",
    "Options": "solo.options",
    "OutOfMemory": "solo.errors",
    "PeerError": "solo.errors",
    "Refused": "solo.errors",
    "SoloError": "solo.errors",
    "SystemFailure": "solo.errors",
    "TimedOut": "solo.errors",
    "VersionMismatch": "solo.errors",
    "data_rank": "solo.job",
    "data_world_size": "solo.job",
    "init": "solo.job",
    "inspect": "solo.load",
    "load": "solo.load",
    "load_into": "solo.load",
    "job_step": "solo.job",
    "members": "solo.job",
    "save": "solo.load",
    "version": "solo.job",
}

__all__ = [
    "Aborted",
    "Again",
    "AuthError",
    "CheckpointError",
    "Closed",
    "Corrupt",
    "InUse",
    "IntervalSync",
    "InvalidArgument",
    "JobOver",
    "LimitExceeded",
    "Member",
    "Mismatch",
    "NonFinite",
    "NotFound",
    "NotSupported",
    "Options",
    "OutOfMemory",
    "PeerError",
    "Refused",
    "SoloError",
    "SystemFailure",
    "TimedOut",
    "VersionMismatch",
    "data_rank",
    "data_world_size",
    "errors",
    "init",
    "inspect",
    "job_step",
    "load",
    "load_into",
    "members",
    "save",
    "version",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("solo.errors")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'solo' has no attribute {name!r}")
    module = importlib.import_module(home)
    # solo.load is the module itself, which can be called: solo.load.materialize is there too.
    value = module if home == f"solo.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
