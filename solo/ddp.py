"""The hooks of an unmodified script: DDP, optimizers, GradScaler, Join, and the script's end.

``install()`` is called once, at the end of ``import torch``, in a rank that solorun started.
Each hook does one thing: it tells the ``Takeover`` what the script has just done.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist

# Keeps torch.compile out of a function and of all that it calls, where a script compiles its
# whole step. torch.compiler.disable does the same, but loads the compiler at once.
from torch._compile import _disable_dynamo as _not_compiled
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim import optimizer as optim

from solo import data, takeover, voice
from solo.config import Config
from solo.errors import InvalidArgument, SoloError
from solo.inner import node_group, node_ranks

_installed = False


def install(config: Config | None = None) -> None:
    """Install the hooks; the second call does nothing.

    Args:
        config: this rank's settings; default: those of the environment.
    """
    global _installed
    if _installed:
        return
    _installed = True
    takeover.begin(config or Config.from_env())
    _around(DistributedDataParallel, "__init__", _ddp_init)
    _around(Optimizer, "__init__", _optimizer_init)
    optim.register_optimizer_step_pre_hook(_before_step)
    optim.register_optimizer_step_post_hook(_after_step)
    _around(torch.amp.GradScaler, "step", _scaler_step)
    _install_join()
    data.install()
    _install_end()


def _around(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a function by ``around(original, ...)``."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    replaced._torchdynamo_disable = True  # type: ignore[attr-defined]
    setattr(owner, name, replaced)


# ---- DistributedDataParallel -----------------------------------------------------------------


def _ddp_init(
    original: Callable[..., None],
    ddp: DistributedDataParallel,
    module: torch.nn.Module,
    *args: Any,
    **kwargs: Any,
) -> None:
    follow = takeover.active()
    if follow is None:
        original(ddp, module, *args, **kwargs)
        return
    if follow.config.elastic:
        original(ddp, module, *args, **kwargs)
    else:
        args, kwargs = _node_local(follow.config, args, kwargs)
        original(ddp, module, *args, **kwargs)
    _warn_of_sync_batch_norm(follow.config, module)
    follow.wrapped(ddp)
    # Not now: other models may follow, and weights are often loaded into the wrapped model.
    ddp.register_forward_pre_hook(_JoinAtForward())


def _node_local(
    config: Config, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of DDP with this node's group in them.

    Raises:
        InvalidArgument: the script gives a group that spans nodes.
    """
    at = 5  # of process_group among the arguments after the module
    given = args[at] if len(args) > at else kwargs.get("process_group")
    mesh = kwargs.get("device_mesh")
    if mesh is not None:
        given = mesh.get_group(mesh_dim=0)
    if given is None:
        kwargs = {**kwargs, "process_group": node_group(config)}
        return (args[:at] + args[at + 1 :] if len(args) > at else args), kwargs
    ranks = set(dist.get_process_group_ranks(given))
    if not ranks <= set(node_ranks(config)):
        raise InvalidArgument(
            f"this script gives DistributedDataParallel a process group of ranks "
            f"{sorted(ranks)}, which spans nodes: gradients would cross the network at every "
            f"step. Leave process_group out, or give one of this node's ranks "
            f"{node_ranks(config)}"
        )
    return args, kwargs


class _JoinAtForward:
    """Joins the job at a wrapped model's first training forward, which all ranks of a node do."""

    _torchdynamo_disable = True

    def __reduce__(self) -> tuple[Any, ...]:
        """In a saved model: a call that gives back what it is given, where solo may be unknown."""
        return getattr, ({}, "get")

    def __call__(self, ddp: DistributedDataParallel, _inputs: Any) -> None:
        follow = takeover.active()
        if follow is None or follow.merger is not None or torch.compiler.is_compiling():
            return
        if ddp.training and torch.is_grad_enabled():
            follow.join()


def _warn_of_sync_batch_norm(config: Config, module: torch.nn.Module) -> None:
    kinds = torch.nn.SyncBatchNorm
    if config.is_leader and any(isinstance(m, kinds) for m in module.modules()):
        voice.say(
            config.node_rank,
            "SyncBatchNorm takes its statistics within this node; between nodes they are averaged "
            "at each merge",
            level="warn",
        )


# ---- optimizers ------------------------------------------------------------------------------


def _optimizer_init(
    original: Callable[..., None], optimizer: Optimizer, *args: Any, **kwargs: Any
) -> None:
    original(optimizer, *args, **kwargs)
    follow = takeover.active()
    if follow is not None:
        follow.made(optimizer)


@_not_compiled
def _before_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    follow = takeover.active()
    if follow is not None:
        follow.before_step(optimizer)


@_not_compiled
def _after_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    follow = takeover.active()
    if follow is not None:
        follow.after_step(optimizer)


@_not_compiled
def _scaler_step(
    original: Callable[..., Any], scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any
) -> Any:
    """One attempt is one step, also when the scaler skips it: members stay aligned."""
    follow = takeover.active()
    if follow is None:
        return original(scaler, optimizer, *args, **kwargs)
    calls = follow.step_calls
    result = original(scaler, optimizer, *args, **kwargs)
    if follow.step_calls == calls:
        follow.before_step(optimizer)
        follow.after_step(optimizer)
    return result


# ---- torch's Join, for uneven inputs within a node -------------------------------------------


def _install_join() -> None:
    from torch.distributed.algorithms.join import Join

    _around(Join, "__enter__", _join_enter)
    _around(Join, "__exit__", _join_exit)


def _join_enter(original: Callable[..., Any], join: Any) -> Any:
    follow = takeover.active()
    if follow is not None:
        follow.join_depth += 1
    return original(join)


def _join_exit(original: Callable[..., Any], join: Any, kind: Any, value: Any, trace: Any) -> Any:
    result = original(join, kind, value, trace)
    follow = takeover.active()
    if follow is not None:
        follow.join_depth -= 1
        if kind is None:
            follow.merge_now()
    return result


# ---- the end of the script -------------------------------------------------------------------


def _install_end() -> None:
    _around(dist, "destroy_process_group", _destroy)
    dist.distributed_c10d.destroy_process_group = dist.destroy_process_group
    _around(sys, "exit", _sys_exit)
    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_leave_to_parent)
    if threading.current_thread() is not threading.main_thread():
        return  # no place to set signal handlers from
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, _asked_to_leave)


def _destroy(original: Callable[..., None], group: Any = None) -> None:
    follow = takeover.active()
    of_all = group is None or group is dist.group.WORLD
    if follow is not None and of_all:
        follow.finish(_failure(sys.exc_info()[1]))
    if any((dist.group.WORLD if of_all else group) is its for its in _of_parent):
        if not of_all:
            return
        dist.distributed_c10d._world.pg_names.clear()  # torch ends those that it finds here
    original(group)


def _failure(error: BaseException | None) -> BaseException | None:
    """What ends the script, unless it is an exit that says that all is well."""
    well = isinstance(error, SystemExit) and not error.code
    return None if well else error


def _sys_exit(original: Callable[..., NoReturn], status: Any = None) -> NoReturn:
    """A script that ends by ``sys.exit(3)`` has failed; at exit Python does not tell any more."""
    follow = takeover.active()
    if follow is not None and threading.current_thread() is threading.main_thread():
        follow.exit_status = status
    original(status)


def _at_exit() -> None:
    follow = takeover.active()
    if follow is None:
        return
    error = getattr(sys, "last_value", None)  # an exception that ended the script
    if error is None or isinstance(error, SystemExit):
        error = SystemExit(follow.exit_status)
    try:
        follow.finish(_failure(error))
    except SoloError as failed:
        follow.report_error(failed)
    if dist.is_initialized():
        # Threads of a group that outlive the interpreter end the process with SIGABRT now and
        # then, which would hide the exit code.
        with contextlib.suppress(Exception):
            dist.destroy_process_group()


_of_parent: list[Any] = []  # in a forked child: the groups of its parent


def _leave_to_parent() -> None:
    """In a forked child the groups' threads are missing: who ends such a group waits for ever."""
    if dist.is_available() and dist.is_initialized():
        for group in dist.distributed_c10d._world.pg_map:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))  # lives until the process is gone
            _of_parent.append(group)


def _asked_to_leave(_number: int, _frame: Any) -> None:
    """SIGUSR1: merge at the next step, leave, and end with exit code 0."""
    follow = takeover.active()
    if follow is not None and follow.merger is not None:
        follow.merger.leave_asked = True


def _terminated(number: int, _frame: Any) -> None:
    """SIGTERM: say goodbye, so that nobody waits for this node, and die of it as one should."""
    follow = takeover.active()
    signal.signal(number, signal.SIG_DFL)
    if follow is not None:
        try:
            follow.finish(signal_name=signal.Signals(number).name)
        except SoloError as failed:
            follow.report_error(failed)
    signal.raise_signal(number)
