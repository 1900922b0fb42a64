"""What every rank started by solorun does first: die with its torchrun, tell its exception."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import sys
import time
import traceback
from types import TracebackType

from solo import log_size

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def install() -> None:
    """Called once in a rank, when ``SOLO_AGENT_PID`` is set; never raises."""
    with contextlib.suppress(Exception):
        die_with_agent(int(os.environ["SOLO_AGENT_PID"]))
        tell_exception()
        log_size.install()


def die_with_agent(agent: int) -> None:
    """Have the kernel end this process when torchrun dies, also of SIGKILL.

    The signal comes when the *thread* that forked this process ends, in torchrun its main
    one. If torchrun died before the call, nobody would send it: hence the look at the parent.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent and not lives(agent):
        os.kill(os.getpid(), signal.SIGKILL)


def lives(pid: int) -> bool:
    """Whether there is such a process, other than one that is dead and only not yet waited for."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def tell_exception() -> None:
    """Write an uncaught exception to torchrun's error file, with its stack."""
    before = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, stack: TracebackType | None) -> None:
        for _ in range(2):  # a worker's death may raise, from a signal handler, in the first
            with contextlib.suppress(Exception):
                record(kind, value, stack)
        if kind.__module__ == "solo.errors" and not os.environ.get("SOLO_VERBOSE"):
            print(f"{kind.__name__}: {value}", file=sys.stderr)  # its words are the explanation
        else:
            before(kind, value, stack)

    sys.excepthook = hook


def record(kind: type[BaseException], value: BaseException, stack: TracebackType | None) -> None:
    """In the form of torch.distributed.elastic's own error files, which torchrun reads."""
    name = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not name or issubclass(kind, KeyboardInterrupt) or pathlib.Path(name).exists():
        return  # a script's own @record has said it already
    text = traceback.format_exception_only(kind, value)[-1].strip()
    extra = {
        "py_callstack": "".join(traceback.format_exception(kind, value, stack)),
        "timestamp": str(int(time.time())),
    }
    data = {"message": {"message": text, "extraInfo": extra}}
    pathlib.Path(name).write_text(json.dumps(data))
