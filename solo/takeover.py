"""An unmodified script's training, followed from the outside.

One ``Takeover`` per rank. The hooks (``solo.ddp``, ``solo.data``) tell it what the script does:
a model was wrapped, an optimizer was made and steps, a pass over the data ends, the script
ends. It finds the model, joins the job before the first step counts, and merges.

The model is what DDP wraps, and beside it every module that owns a parameter of some
optimizer: many frameworks do not wrap when their world has one rank. It is looked for once,
at the latest in the first ``optimizer.step()``. If the job's values are others than those
whose gradients were just computed, that step is thrown away: its gradients are dropped.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterable
from typing import NoReturn

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from solo import _C, outer, voice
from solo.config import Config
from solo.errors import (
    AuthError,
    Corrupt,
    InvalidArgument,
    JobOver,
    Mismatch,
    OutOfMemory,
    Refused,
    SoloError,
    TimedOut,
    VersionMismatch,
)
from solo.inner import Node
from solo.merger import Merger
from solo.model import Model
from solo.samples import Fetched

_ASK_MS = 500  # how long the master may take to say who is there

_EXIT_CODES: tuple[tuple[type[SoloError], int], ...] = (
    (JobOver, 0),
    (Corrupt, 65),
    (OutOfMemory, 71),
    (TimedOut, 75),
    (AuthError, 77),
    (Refused, 78),
    (Mismatch, 78),
    (VersionMismatch, 78),
)

_active: Takeover | None = None


def active() -> Takeover | None:
    """This process's takeover; None where no hooks are installed, and in forked children."""
    return _active if _active is not None and _active.pid == os.getpid() else None


def begin(config: Config) -> Takeover:
    """Start following this process's script; once."""
    global _active
    if _active is None:
        _active = Takeover(config)
    return _active


class Takeover:
    """What solo knows of the script in this process.

    Args:
        config: this rank's settings.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.pid = os.getpid()
        self.merger: Merger | None = None
        self.step_calls = 0  # optimizer steps seen, of any optimizer
        self.exit_status: object = None  # what sys.exit() was given, if nothing has stepped since
        self.fetched = Fetched()  # what the next step is trained on
        self.merge_after_step = False
        self.join_depth = 0  # inside torch's Join context
        self._idle = False  # stood down, or over
        self._wrapped: list[weakref.ref[DistributedDataParallel]] = []
        # In the order in which they were made: parameters of each when last looked at.
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._clock: weakref.ref[Optimizer] | None = None
        self._expected: int | None = None
        self._dropped = False  # the gradients of the step that is under way
        self._others = 0  # steps of other optimizers since the clock's last

    # ---- what the script has made ----------------------------------------------------------

    def wrapped(self, ddp: DistributedDataParallel) -> None:
        """A model was wrapped."""
        self._wrapped.append(weakref.ref(ddp))

    def made(self, optimizer: Optimizer) -> None:
        """An optimizer was made, or one is seen that was copied or unpickled."""
        self._optimizers.setdefault(optimizer, 0)

    def optimizers(self) -> list[Optimizer]:
        """Those that are alive, in the order in which they were made."""
        return list(self._optimizers)

    def stand_down(self) -> None:
        """Leave the script alone: it drives the sync itself."""
        if self.merger is not None:
            raise InvalidArgument(
                "solo has already taken this script's model over: make the IntervalSync before "
                "the first step, or do not make one (the hooks do the same)"
            )
        self._idle = True

    # ---- joining ---------------------------------------------------------------------------

    def join(self) -> bool:
        """Find the model and enter the job, if that was not done.

        Returns:
            Whether the model's values were replaced just now.
        """
        if self._idle or self.merger is not None:
            return False
        model = self._find_model()
        try:
            self.merger = Merger(self.config, model, Node(self.config), self.optimizers)
            return self.merger.join()
        except SoloError as error:
            self._fail(error)
        except BaseException:
            self._idle = True  # whoever catches it does not train on unnoticed
            raise

    def join_for_pass(self, *, all_ranks: bool) -> None:
        """A pass over data begins: join now if the model is there, so that data is split right.

        Args:
            all_ranks: every rank of this node does the same now.
        """
        alike = all_ranks or self.config.world_size == 1
        if self.merger is None and not self._idle and alike and self.optimizers():
            self.join()

    def _find_model(self) -> Model:
        wrapped = [ddp for ref in self._wrapped if (ddp := ref()) is not None]
        modules: list[nn.Module] = [ddp.module for ddp in wrapped]
        ignored = [set(ddp.parameters_to_ignore) for ddp in wrapped]
        held = {id(p) for module in modules for p in module.parameters()}
        trained = [
            p
            for optimizer in self.optimizers()
            for group in optimizer.param_groups
            for p in group["params"]
        ]
        owners, strays = find_owners([p for p in trained if id(p) not in held])
        if not modules and not owners and not strays:
            raise InvalidArgument(
                "solo is on, but no model is registered: no DistributedDataParallel and no "
                "torch.optim optimizer with parameters was found. Wrap the model, or use "
                "solo.IntervalSync(model, optimizer), or switch solo off with SOLO_DISABLE=1"
            )
        return Model([*modules, *owners], strays, [*ignored, *(set[str]() for _ in owners)])

    # ---- steps -----------------------------------------------------------------------------

    def before_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        if self._idle:
            return
        self.made(optimizer)
        if self.join():
            for other in self.optimizers():
                for group in other.param_groups:
                    for parameter in group["params"]:
                        parameter.grad = None
            self._dropped = True
        self._check_known(optimizer)
        if self._clock is None or self._clock() is None:
            self._clock = weakref.ref(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped, or a GradScaler has decided that it does not."""
        self.step_calls += 1
        self.exit_status = None  # whoever caught it has gone on
        merger = self.merger
        samples = self.fetched.take()
        if self._idle or merger is None:
            return
        if self._clock is None or self._clock() is not optimizer:
            self._others += 1
            self.fetched.give_back(samples)  # the clock's next step counts them
            merger.touch()
            if self._others > 2 * self.config.schedule.at(merger.job_step):
                self._clock, self._others = weakref.ref(optimizer), 0  # the old one has retired
            return
        self._others = 0
        dropped, self._dropped = self._dropped, False
        if dropped:
            merger.count_dropped()
        else:
            merger.count(lr=outer.learning_rate(optimizer), samples=samples)
        if self.postponed():
            return
        ended, self.merge_after_step = self.merge_after_step, False
        try:
            if ended or merger.is_due():
                merger.merge()
        except SoloError as error:
            self._fail(error)
        if merger.left:  # asked to by a signal
            self._idle = True
            raise SystemExit(0)

    def postponed(self) -> bool:
        """Inside torch's Join, ranks of a node do different numbers of steps: merge after it."""
        return self.join_depth > 0 and self.config.local_world_size > 1

    def _check_known(self, optimizer: Optimizer) -> None:
        """An optimizer with parameters that nobody merges would train them alone: refuse."""
        merger = self.merger
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        if merger is None or self._optimizers[optimizer] == count:
            return
        self._optimizers[optimizer] = count
        unknown = [
            tuple(p.shape)
            for group in optimizer.param_groups
            for p in group["params"]
            if not merger.model.holds(p)
        ]
        if unknown:
            shapes = ", ".join(map(str, unknown[:3])) + (", ..." if len(unknown) > 3 else "")
            raise InvalidArgument(
                f"{type(optimizer).__name__} trains {len(unknown)} parameters (shapes {shapes}) "
                "that were not there when solo took the model over; they would be trained by "
                "this node alone. Make all models and optimizers before the first training step"
            )

    def merge_now(self) -> None:
        """Merge what was trained since the last merge, if anything was."""
        merger = self.merger
        if not self._idle and merger is not None and merger.has_trained and not self.postponed():
            try:
                merger.merge()
            except SoloError as error:
                self._fail(error)

    # ---- the end ---------------------------------------------------------------------------

    def finish(self, error: BaseException | None = None, signal_name: str = "") -> None:
        """The script ends: merge once more and leave, or just leave if it failed.

        Args:
            error: why it ends, if it failed.
            signal_name: the signal that ends it, if one does.
        """
        merger, self.merger = self.merger, None
        was_idle, self._idle = self._idle, True
        if merger is None:
            if not was_idle and error is None and not signal_name:
                self._warn_of_nothing()
            return
        if isinstance(error, KeyboardInterrupt):
            signal_name = "SIGINT"
        if error is None and not signal_name:
            merger.finish()
        else:
            said = signal_name or f"{type(error).__name__}: {error}"
            merger.leave(finished=False, reason=said[:200])

    def _warn_of_nothing(self) -> None:
        """No model was ever merged: say so, since all may look well."""
        voice.say(
            self.config.node_rank,
            "solo was on, but this script made no step with a torch.optim optimizer: nothing was "
            "merged",
            level="error",
        )

    def _fail(self, error: SoloError) -> NoReturn:
        """The job does not take this node, or is over: end the script, never train alone.

        What concerns the job ends the process with a message and a code for schedulers; what
        the script did wrong is raised where it did it.
        """
        merger, self.merger = self.merger, None
        self._idle = True
        over = isinstance(error, JobOver)
        if merger is not None:
            merger.leave(finished=over, reason=str(error)[:200])
        for kind, code in _EXIT_CODES:
            if isinstance(error, kind):
                if self.config.is_leader:
                    ending = "this node ends, exit code 0" if over else f"exit code {code}"
                    self.report_error(error, ending)
                raise SystemExit(code) from None
        raise error

    def report_error(self, error: SoloError, ending: str = "") -> None:
        """Tell an error where nobody can catch it."""
        level = "info" if isinstance(error, JobOver) else "error"
        tail = f" ({ending})" if ending else ""
        voice.say(self.config.node_rank, f"{error}{tail}", level=level)

    # ---- data ------------------------------------------------------------------------------

    def shards(self) -> tuple[int, int, int, int] | None:
        """How an elastic job splits data: (slot, members, first shard, shards); None: it does not.

        Before the node has joined, the numbers are those to be expected.
        """
        if self._idle or not self.config.elastic:
            return None
        if self.merger is not None:
            first, total = self.merger.data_shards
            return self.merger.slot, max(1, len(self.merger.members)), first, total
        members = self._expected_members()
        return 0, members, 0, members * self.config.device_count

    def _expected_members(self) -> int:
        """Nodes that will be there, as far as is known before joining.

        On a node of several ranks they must all think alike, so the master is not asked.
        """
        if self._expected is None:
            self._expected = self.config.min_nodes
            if self.config.world_size == 1:
                self._expected = max(self._expected, self._members_now())
        return self._expected

    def _members_now(self) -> int:
        """Live members by the master's word, this node among them; 1 if it does not answer."""
        config = self.config
        try:
            status = _C.status(config.master_url, config.job_id, config.token, _ASK_MS)
        except SoloError:
            return 1
        others = {m["node_rank"] for m in status["members"] if m["live"]} - {config.node_rank}
        return len(others) + 1


def find_owners(parameters: Iterable[Tensor]) -> tuple[list[nn.Module], list[Tensor]]:
    """The outermost modules that own these parameters, and the parameters that none owns.

    Several may hold the same ones (a wrapper and a view of it): the one with most of them is
    taken, the smaller one if equal, so that nodes that run the same script agree.
    """
    wanted = {id(p): p for p in parameters}
    if not wanted:
        return [], []
    everything = [o for o in gc.get_objects() if issubclass(type(o), nn.Module)]
    inner = {id(child) for module in everything for child in module._modules.values()}
    roots: list[tuple[nn.Module, set[int], int]] = []
    for module in everything:
        if id(module) not in inner and not isinstance(module, DistributedDataParallel):
            own = {id(p) for p in module.parameters()}
            if own & wanted.keys():
                roots.append((module, own & wanted.keys(), len(own)))
    owners: list[nn.Module] = []
    strays: list[Tensor] = []
    left = dict(wanted)
    while left:
        first = next(iter(left))
        holders = [root for root in roots if first in root[1]]
        if not holders:
            strays.append(left.pop(first))
            continue
        module, covered, _ = min(
            holders, key=lambda root: (-len(root[1]), root[2], type(root[0]).__qualname__)
        )
        owners.append(module)
        for key in covered:
            left.pop(key, None)
    return owners, strays
