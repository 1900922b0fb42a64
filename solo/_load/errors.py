"""The one exception of loading: what is wrong with which file, why, and what mends it."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from solo.errors import SoloError

if TYPE_CHECKING:
    from collections.abc import Sequence

SYSTEM_CODE = -3  # libsolo's, of a system call that failed
SHOWN = 12  # problems in one message; the rest is counted
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        code: stable word: ``truncated``, ``damaged``, ``unsafe``, ``not_found``, ``device``, ...
        text: one sentence.
        offset: byte in the file, about; None: not at one place.
        record: zip record or tensor it is about, or "".
    """

    code: str
    text: str
    offset: int | None = None
    record: str = ""


class CheckpointError(SoloError):
    """A checkpoint cannot be loaded, saved or placed.

    Attributes:
        reason: code of the first problem, a stable word to branch on.
        path: the file or directory, or "".
        problems: everything that was found, not the first thing only.
        fix: the command or argument that mends it, or "".
    """

    code = -15

    def __init__(
        self,
        problems: Problem | Sequence[Problem],
        *,
        path: str = "",
        fix: str = "",
        total: int = 0,
    ) -> None:
        found = [problems] if isinstance(problems, Problem) else list(problems)
        self.problems = found
        self.reason = found[0].code if found else "unknown"
        self.path = path
        self.fix = fix
        super().__init__(_message(found, path, fix, total or len(found)))

    def __reduce__(self) -> tuple[Any, ...]:
        """So that it comes whole from another process."""
        return (_again, (self.problems, self.path, self.fix, str(self)))

    @property
    def offset(self) -> int | None:
        """Byte in the file of the first problem."""
        return self.problems[0].offset if self.problems else None

    @property
    def record(self) -> str:
        """Record or tensor of the first problem."""
        return self.problems[0].record if self.problems else ""


def _again(problems: list[Problem], path: str, fix: str, text: str) -> CheckpointError:
    error = CheckpointError(problems, path=path, fix=fix)
    error.args = (text,)
    return error


def _message(problems: list[Problem], path: str, fix: str, total: int) -> str:
    head = f"{printable(path)}: " if path else ""
    if len(problems) == 1 and total == 1:
        lines = [head + _line(problems[0])]
    else:
        lines = [f"{head}{total} problems:"]
        lines += [f"  - {_line(problem)}" for problem in problems[:SHOWN]]
        if total > SHOWN:
            lines.append(f"  - and {total - SHOWN} more")
    if fix:
        lines.append(f"  -> {fix}")
    return "\n".join(printable(line) for text in lines for line in text.split("\n"))


def printable(line: str) -> str:
    """Names of files and tensors may hold what no stream can print, or what a terminal obeys."""
    return line.translate(CONTROLS).encode(errors="backslashreplace").decode()


def _line(problem: Problem) -> str:
    return f"[{problem.code}] {problem.text}"


def fail(
    code: str, text: str, *, path: str = "", fix: str = "", record: str = ""
) -> CheckpointError:
    """An error of one problem, to be raised by the caller."""
    return CheckpointError(Problem(code, text, record=record), path=path, fix=fix)


def read_error(path: str, error: Exception) -> Exception:
    """What libsolo says of reading a file, as the exception that callers know."""
    text = str(error)
    code = getattr(error, "code", 0)
    if isinstance(error, CheckpointError):
        return error
    if "changed while it was read" in text or "became shorter" in text:
        return fail("changed", text, path=path, fix="wait until its writer has finished")
    if code == CheckpointError.code:
        return fail("mismatch", text, path=path, fix="do not trust this file")
    if code == SYSTEM_CODE and text.endswith(os.strerror(errno.EFAULT)):
        text = "a tensor of the target is in memory that cannot be written: a read-only mapping"
        return fail("argument", text, path=path, fix="load(path) gives tensors of their own")
    if code == SYSTEM_CODE:
        return fail("io", text, path=path, fix="look at the disk or the network")
    return error
