"""What can go wrong, as classes: each is a ``SoloError`` with libsolo's code."""

from __future__ import annotations

__all__ = [
    "Aborted",
    "Again",
    "AuthError",
    "Closed",
    "Corrupt",
    "InUse",
    "InvalidArgument",
    "JobOver",
    "LimitExceeded",
    "Mismatch",
    "NonFinite",
    "NotFound",
    "NotSupported",
    "OutOfMemory",
    "PeerError",
    "Refused",
    "SoloError",
    "SystemFailure",
    "TimedOut",
    "VersionMismatch",
    "from_code",
]


class SoloError(RuntimeError):
    """An error of solo: ``code`` is libsolo's (negative), the text says what, why and the fix."""

    code = 0

    def __init__(self, text: str = "", *, code: int | None = None) -> None:
        super().__init__(text)
        if code is not None:
            self.code = code


class InvalidArgument(SoloError, ValueError):
    """An argument or setting is wrong."""

    code = -1


class OutOfMemory(SoloError, MemoryError):
    """Memory, or a memory limit, does not suffice."""

    code = -2


class SystemFailure(SoloError):
    """A system call failed."""

    code = -3


class Again(SoloError):
    """Not now: a limit of things in flight."""

    code = -4


class TimedOut(SoloError, TimeoutError):
    """A deadline passed; the text says who was waited for."""

    code = -5


class Closed(SoloError):
    """The other side, or this object, was closed."""

    code = -6


class PeerError(SoloError):
    """A peer broke the protocol."""

    code = -7


class AuthError(SoloError, PermissionError):
    """The token is missing or wrong, or an address is not allowed without one."""

    code = -8


class VersionMismatch(SoloError):
    """Versions of solo, its wire format, torch or Python do not fit together."""

    code = -9


class Refused(SoloError):
    """The master says no: node rank taken, wrong job, a second master."""

    code = -10


class Mismatch(SoloError):
    """Nodes differ in model, dtype, interval, codec or outer step."""

    code = -11


class Aborted(SoloError):
    """A round was given up for good."""

    code = -12


class JobOver(SoloError):
    """The job is over: the nodes that founded it have finished."""

    code = -13


class NonFinite(SoloError):
    """A NaN or Inf in this node's parameters; the text names it."""

    code = -14


class Corrupt(SoloError):
    """Bytes fail their checksum or their format's rules."""

    code = -15


class LimitExceeded(SoloError):
    """More than a named limit allows."""

    code = -16


class NotSupported(SoloError):
    """Has no meaning, or is not supported here."""

    code = -17


class InUse(SoloError):
    """A port, name or handle is in use."""

    code = -18


class NotFound(SoloError, LookupError):
    """No such file, name or record."""

    code = -19


_BY_CODE: dict[int, type[SoloError]] = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        OutOfMemory,
        SystemFailure,
        Again,
        TimedOut,
        Closed,
        PeerError,
        AuthError,
        VersionMismatch,
        Refused,
        Mismatch,
        Aborted,
        JobOver,
        NonFinite,
        Corrupt,
        LimitExceeded,
        NotSupported,
        InUse,
        NotFound,
    )
}


def from_code(code: int, text: str) -> SoloError:
    """The error for one of libsolo's codes; called by the native modules."""
    return _BY_CODE.get(code, SoloError)(text, code=code)
