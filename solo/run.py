"""The thin main around torchrun's own: ``python -m solo.run``, which solorun execs.

torchrun runs as it is, without its outer ``record`` wrapper. Added are the script's real exit
code, a failure in a few lines with the real exception, a second Ctrl-C that ends at once,
SIGUSR1 for the ranks, and a fixed world that says for whom it waits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

from solo import voice

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

USAGE, BAD_DATA, UNAVAILABLE, TEMPFAIL = 64, 65, 69, 75  # sysexits.h, as in docs/errors.md
NO_PERMISSION, REFUSED = 77, 78
# What the engine refused, as a scheduler wants to know it: not the traceback's status 1.
STATUS_OF = {
    "solo.errors.Corrupt": BAD_DATA,
    "solo.errors.TimedOut": TEMPFAIL,
    "solo.errors.AuthError": NO_PERMISSION,
    "solo.errors.Refused": REFUSED,
    "solo.errors.VersionMismatch": REFUSED,
    "solo.errors.Mismatch": REFUSED,
}
USR1_WAIT_S = 30.0


def ranks() -> list[int]:
    """Process ids of the ranks that this torchrun has started and that still live."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            ours = after_name[0] != "Z" and int(after_name[1]) == os.getpid()
            if ours and b"TORCHELASTIC_RUN_ID=" in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def catches_usr1(pid: int) -> bool:
    """Whether the process has a handler by now; without one the signal would kill it."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1)
    return False


def pass_usr1_on() -> None:
    """Send SIGUSR1 (merge, save, leave) to each rank as soon as it can take it."""
    deadline = time.monotonic() + USR1_WAIT_S
    waiting = ranks()
    while waiting:
        for pid in [pid for pid in waiting if catches_usr1(pid)]:
            waiting.remove(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        waiting = [pid for pid in waiting if pid in ranks()]
        if time.monotonic() > deadline:
            note(f"SIGUSR1: {len(waiting)} ranks have no handler for it; they go on")
            return
        if waiting:
            time.sleep(0.2)


_ending = threading.Lock()  # never let go of: who comes second waits for the end


def end_at_once(number: int) -> None:
    """The second signal: no grace for anyone."""
    _ending.acquire()
    for pid in ranks():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    note("interrupted again: ended at once")
    os._exit(128 + number)


def watch_signals() -> None:
    """See signals from a thread, also while the main one waits inside of torch."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        interrupts = 0
        while numbers := reader.recv(64):
            if signal.SIGUSR1 in numbers:
                threading.Thread(target=pass_usr1_on, daemon=True).start()
            interrupts += numbers.count(signal.SIGINT)
            if interrupts > 1:
                end_at_once(signal.SIGINT)

    watch.keep = writer  # type: ignore[attr-defined]  # the socket lives as long as the thread
    threading.Thread(target=watch, daemon=True, name="solo signals").start()


def note(text: str) -> None:
    """One line of ours on stderr; stdout is the script's."""
    if voice.as_json():
        print_json("info", text)
    else:
        print(f"solorun: {text}", file=sys.stderr, flush=True)


def notes(lines: list[str]) -> None:
    """A line of ours, and lines that belong to it."""
    if voice.as_json():
        print_json("info", "\n".join(lines))
    else:
        note("\n  ".join(lines))


def print_json(level: str, text: str, **fields: object) -> None:
    node = int(os.environ.get("SOLO_NODE_RANK", "0"))
    voice.say_json(node, text, level=level, event="run", **fields)


def error(code: int, what: str, **rest: str | None) -> None:
    """A message in the launcher's form; ``rest`` are its further lines in order."""
    name = f"SOLO-E{code:03}"
    if voice.as_json():
        print_json("error", what, code=name, **rest)
        return
    color = os.environ.get("SOLO_COLOR", "auto")
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    colored = color == "always" or (color == "auto" and sys.stderr.isatty() and not plain)
    on, off = ("\033[1;31m", "\033[0m") if colored else ("", "")
    lines = [f"solorun: {on}error {name}{off}: {what}"]
    lines += [f"  {key}: {value}" for key, value in rest.items() if value]
    print("\n".join(lines), file=sys.stderr, flush=True)


def exit_code(code: int) -> int:
    """A rank's exit code as a shell would see it: 128 + N if signal N ended it."""
    return code if code >= 0 else 128 - code


def reason(failure: ProcessFailure) -> str:
    """The exception's own line, or which signal it was."""
    message = failure.message
    if isinstance(message, dict) and message.get("message"):
        return str(message["message"]).strip().splitlines()[0]
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        hint = ", often out of memory: dmesg | tail" if name == "SIGKILL" else ""
        return f"died of signal {-failure.exitcode} ({name}){hint}"
    return f"exit status {failure.exitcode}"


def last_place(failure: ProcessFailure) -> str | None:
    """File and line where the exception came up."""
    message = failure.message
    stack = (
        message.get("extraInfo", {}).get("py_callstack", "") if isinstance(message, dict) else ""
    )
    places = [line.strip() for line in stack.splitlines() if line.strip().startswith("File ")]
    return places[-1] if places else None


def report_failure(rank: int, failure: ProcessFailure, others: int) -> int:
    from solo import run_logs

    node = os.environ.get("SOLO_NODE_RANK", "0")
    also = f" (and {others} more)" if others else ""
    log = run_logs.log_of(failure.local_rank)
    error(
        80,
        f"node {node} rank {rank} on {socket.gethostname()}{also}: {reason(failure)}",
        why=last_place(failure),
        log=log,
        next=f"less +G {log}" if log else None,
    )
    kind = reason(failure).partition(":")[0]
    return STATUS_OF.get(kind, exit_code(failure.exitcode))


def report_missing(lost: Exception, nnodes: int, where: str, timeout_s: float) -> int:
    """The nodes of a fixed world did not all come, or its rendezvous was lost later."""
    from solo import run_logs

    node = os.environ.get("SOLO_NODE_RANK", "0")
    if run_logs.STARTED.is_set():
        error(22, f"node {node}: the rendezvous of the {nnodes} nodes was lost: {lost}")
        return TEMPFAIL
    error(
        22,
        f"node {node}: not all of {nnodes} nodes came to {where} within {timeout_s:.0f} s",
        why="\n       ".join(str(lost).splitlines()),
        fix="start the missing nodes with the same --nnodes and --master_url, each with its "
        "own --node_rank; or raise --timeout",
    )
    return TEMPFAIL


def quiet() -> None:
    """torchrun's own lines on a failure say less than ours; --verbose brings them back."""
    if os.environ.get("SOLO_VERBOSE"):
        return
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.run", "torch.distributed.elastic")):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def report_stale(wrong: BaseException) -> int:
    """The package's metadata is of another version: torchrun does not find what we registered."""
    error(
        62,
        f"solo is not installed as a whole: {wrong}",
        why="the package's metadata in this Python lacks the entry points of this version",
        fix="in solo's source: pip install --no-build-isolation --force-reinstall --no-deps .",
    )
    return REFUSED


def main(arguments: list[str] | None = None) -> int:
    """Run torchrun with these arguments; returns the exit status of the node."""
    watch_signals()
    import torch.distributed as dist
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError

    from solo import run_logs

    quiet()
    node = os.environ.get("SOLO_NODE_RANK", "0")
    os.environ.setdefault("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", f"n{node}/r${{rank}}: ")
    args = torchrun.parse_args(arguments)  # type: ignore[no-untyped-call]
    nnodes = int(os.environ.get("SOLO_NNODES", "1"))
    timeout_s = float(os.environ.get("SOLO_TIMEOUT", "300"))
    where = f"{args.master_addr}:{args.master_port}"
    if nnodes > 1:
        from solo import world

        world.install(notes, timeout_s)
    try:
        torchrun.run(args)  # type: ignore[no-untyped-call]
    except ChildFailedError as failed:
        run_logs.drain()
        rank, failure = failed.get_first_failure()
        return report_failure(rank, failure, len(failed.failures) - 1)
    except SignalException as stopped:
        run_logs.drain()
        if _ending.locked() or ranks():  # a further signal came while torchrun waited for them
            end_at_once(stopped.sigval)
        error(81, f"stopped by {signal.Signals(stopped.sigval).name}")
        return 128 + int(stopped.sigval)
    except KeyboardInterrupt:
        error(81, "stopped by SIGINT")
        return 128 + signal.SIGINT
    except (RendezvousError, dist.DistError) as lost:
        return report_missing(lost, nnodes, where, timeout_s)
    except (ValueError, AssertionError) as wrong:
        if run_logs.STARTED.is_set():  # torchrun could not read what a failed rank left for it
            run_logs.drain()
            log = run_logs.log_of(0)
            error(
                80,
                f"node {node}: a rank failed, and why is not known: {wrong}",
                why="the rank's error file is damaged or incomplete: a full disk?",
                log=log,
            )
            return 1
        if "logs_specs" in str(wrong):  # solorun asked for ours: the package does not name it
            return report_stale(wrong)
        error(2, f"torchrun: {wrong}", next="solorun --help_all")
        return USAGE
    run_logs.drain()
    return 0


if __name__ == "__main__":
    try:
        status = main()
    except KeyboardInterrupt:  # while torch is being imported
        status = 128 + signal.SIGINT
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(status)
