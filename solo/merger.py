"""One model in one job: joins with it, counts its steps, merges it, leaves.

``IntervalSync`` and the hooks of an unmodified script both drive this class. On a node of
several ranks every rank makes the same calls at the same steps; the leader alone has the
native engine and speaks to other nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

import solo
from solo import _C, memory, outer
from solo.config import Config
from solo.errors import Closed, JobOver, SoloError, TimedOut
from solo.inner import Node
from solo.model import Model
from solo.report import Report

_FOUNDERS_SECONDS = 30.0  # a founder waits that long for the others' first values
_FOUNDERS_POLL_SECONDS = 0.005
_GONE_SECONDS = 5.0  # at least so long a master may be away while a node joins
_GONE_ASK_SECONDS = 1.0
_GONE_ASK_MS = 500
_SLICE_SECONDS = 0.5  # how long the leader waits before it shows a sign of life


@dataclass(frozen=True)
class Member:
    """A node in the job, as of the last merge."""

    node_rank: int
    slot: int
    device_count: int
    name: str
    address: str


class Merger:
    """The sync of one model.

    Args:
        config: this rank's settings.
        model: what is merged.
        node: this node's ranks.
        optimizers: gives the inner optimizers known now.
    """

    def __init__(
        self,
        config: Config,
        model: Model,
        node: Node,
        optimizers: Callable[[], Iterable[Optimizer]] = tuple,
    ) -> None:
        self.config = config
        self.model = model
        self.node = node
        self.members: tuple[Member, ...] = ()
        self.slot = 0
        self.version = 0
        self.job_step = 0
        self.step_count = 0  # of this node, in all
        self.steps = 0  # since the last merge, as the next three
        self.samples: int | None = 0  # None: unknown, the members weigh by steps
        self.lr_sum = 0.0
        self._interval = 0
        self._dropped = 0  # steps since the last merge that changed nothing
        self._touched = False
        self._optimizers = optimizers
        self._engine: _C.Engine | None = None
        self._report: Report | None = None
        self.left = False
        self.leave_asked = False  # by a signal: leave after the next merge

    # ---- joining and leaving ---------------------------------------------------------------

    def join(self) -> bool:
        """Enter the job; the model then has the job's values.

        Returns:
            Whether these are other values than the model brought.

        Raises:
            OutOfMemory: the node cannot hold what the sync needs.
            SoloError: the job does not take this node.
        """
        answer = self.node.together(self._attach)
        self.node.share(self.model.tensors())
        self._take_view(answer["view"])
        return bool(answer["replaced"])

    def _attach(self, alive: Callable[[], None]) -> dict[str, Any]:
        """Attach on a thread of its own: this one hears signals, and tells who is missing."""
        engine, report = self._open()
        addresses, _keep = self.model.stage()
        done: list[_C.Joined | SoloError] = []

        def attach() -> None:
            try:
                done.append(engine.attach(self.model.layout(), addresses))
            except SoloError as error:
                done.append(error)

        thread = threading.Thread(target=attach, name="solo-attach", daemon=True)
        thread.start()
        gone = _MasterGone(self.config)
        while thread.is_alive():
            thread.join(_SLICE_SECONDS)
            alive()
            report.waiting(engine, "to join the job")
            if gone.for_good():
                engine.close()
                raise TimedOut(gone.text())
        answer = done[0]
        if isinstance(answer, TimedOut):
            url, few = self.config.master_url, report.too_few(engine)
            raise TimedOut(
                f"{answer} at {url}{few and f' ({few})'}. See who is there with: solorun status "
                f"--master_url {url}"
            ) from None
        if isinstance(answer, SoloError):
            raise answer
        self.model.unstage()
        if answer["founder"]:
            self._await_founders(engine, alive)
        view = self._look(engine)
        report.joined(answer, view["members"])
        return {"replaced": answer["replaced"], "view": view}

    def _open(self) -> tuple[_C.Engine, Report]:
        """The leader's engine; what is wrong with it is told to all ranks, so not earlier."""
        settings = engine_settings(self.config)
        needed = _C.memory_needed(self.model.layout(), **settings)
        tensors = [entry.tensor for entry in self.model.entries]
        memory.check(self.config, tensors, self._optimizers(), needed)
        self._report = Report(self.config)
        self._engine = _C.Engine(**settings)
        return self._engine, self._report

    def _await_founders(self, engine: _C.Engine, alive: Callable[[], None]) -> None:
        """Let the other founders fetch their values too: data is split over the member list."""
        deadline = time.monotonic() + min(_FOUNDERS_SECONDS, self.config.timeout)
        wanted = self.config.nnodes or self.config.min_nodes
        while len(engine.members()) < wanted and time.monotonic() < deadline:
            time.sleep(_FOUNDERS_POLL_SECONDS)
            alive()

    def finish(self) -> None:
        """The script has ended well: merge what is left, then leave."""
        if not self.left:
            try:
                if self.has_trained:
                    self.merge(final=True)
            except JobOver:
                pass  # the others have finished before; nothing is left to do
            self.leave(finished=True, reason="finished")

    def leave(self, *, finished: bool, reason: str) -> None:
        """Say goodbye, so that nobody waits for this node; safe to call twice."""
        if self.left:
            return
        self.left = True
        if self._engine is not None:
            engine, report = self._leader()
            plain = reason.replace("\0", " ").encode(errors="replace").decode()
            try:
                engine.leave(finished, plain)
            except SoloError as error:
                report.say(f"leaving: {error}")
            report.follow(engine)
            engine.close()
            report.close()

    # ---- steps and merges ------------------------------------------------------------------

    def step(self, *, lr: float = 0.0, samples: int | None = None) -> bool:
        """Count one optimizer step; merge if the interval is full or the others wait.

        Args:
            lr: inner learning rate of this step; 0: unknown.
            samples: what this rank trained on in this step; None: unknown, and the members of
                a round in which one does not know are weighed by their steps.

        Returns:
            Whether it merged.

        Raises:
            JobOver: the founders have finished.
            SoloError: the merge failed; the model is as it was.
        """
        self.count(lr=lr, samples=samples)
        if self.is_due():
            self.merge()
            return True
        return False

    def count(self, *, lr: float = 0.0, samples: int | None = None) -> None:
        """Count one optimizer step, without merging."""
        self.step_count += 1
        self.steps += 1
        if self.samples is not None:
            self.samples = None if samples is None else self.samples + samples * self.node.size
        self.lr_sum += lr

    def count_dropped(self) -> None:
        """Count a step whose gradients were thrown away: the boundary stays where the others have
        theirs, the weight is that of the other steps."""
        self.step_count += 1
        self._dropped += 1

    def touch(self) -> None:
        """Parameters were changed by a step that does not count: of a second optimizer."""
        self._touched = True

    @property
    def has_trained(self) -> bool:
        """Whether the model was changed since the last merge."""
        return self.steps > 0 or self._touched

    def is_due(self) -> bool:
        """Whether a merge belongs here: all ranks of the node ask at the same steps."""
        if self._engine is not None and self._report is not None:
            self._report.follow(self._engine)
        counted = self.steps + self._dropped
        return counted >= self._interval or self.node.agree(self._wanted)

    def _wanted(self) -> bool:
        engine, _ = self._leader()
        over = engine.over() and not self.config.linger
        return self.leave_asked or over or engine.due()

    def merge(self, *, final: bool = False) -> dict[str, Any]:
        """Merge with the others now; the model then has the new anchor's values.

        Args:
            final: this node leaves after it.

        Returns:
            libsolo's figures of the merge (see ``_C.pyi``).
        """
        if self.left:
            raise Closed("this node has left the job")
        answer = self.node.together(lambda alive: self._exchange(alive, final))
        final = answer["final"]
        self.node.share(self.model.tensors())
        result: dict[str, Any] = answer["result"]
        if result["zero_inner_momentum"]:
            outer.zero_inner_momentum(self._optimizers())
        if result["contributor_count"] < result["member_count"]:
            self._renew_optimizers()
        self.steps, self.samples, self._dropped = 0, 0, 0
        self._touched = False
        self.lr_sum = 0.0
        self._take_view(answer["view"])
        if final:
            self.leave(finished=True, reason="finished")
        return result

    def _renew_optimizers(self) -> None:
        """Somebody was left out of the round: if for a NaN here, its optimizers are cured too."""
        count = outer.renew_nonfinite_state(self._optimizers())
        if count and self._report is not None:
            self._report.say(
                f"the optimizer's state of {count} parameters held a NaN or Inf and begins anew"
            )

    def _exchange(self, alive: Callable[[], None], final: bool) -> dict[str, Any]:
        engine, report = self._leader()
        final = final or self.leave_asked
        if engine.over() and not self.config.linger:
            raise JobOver(
                "the job is over: the nodes that founded it have finished. With --linger the "
                "others go on"
            )
        addresses, keep = self.model.stage()
        engine.submit(
            addresses,
            keep,
            samples=self._weight(),
            steps=self.steps,
            lr_sum=self.lr_sum,
            final=final,
        )
        try:
            while (result := engine.wait(_SLICE_SECONDS)) is None:
                alive()
                report.waiting(engine, "to merge")
        except TimedOut as late:
            few = report.too_few(engine)
            raise TimedOut(f"{late}{few and f' ({few})'}") from None
        self.model.unstage()
        view = self._look(engine)
        byte_count = 4 * self.model.element_count
        report.merged(engine, result, view, steps=self.steps, byte_count=byte_count)
        return {"result": result, "view": view, "final": final}

    def _weight(self) -> int:
        """Samples since the last merge; 0 beside steps says that they are unknown."""
        if self.steps == 0:
            return self.node.size * self._touched
        return self.samples or 0

    # ---- what is known of the job ----------------------------------------------------------

    @property
    def data_shards(self) -> tuple[int, int]:
        """(first shard of this node, shards in all): one shard per rank of every member."""
        before = sum(m.device_count for m in self.members if m.slot < self.slot)
        total = sum(m.device_count for m in self.members)
        return before, max(total, self.node.size)

    @torch.no_grad()
    def anchor(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Copies of the committed anchor and outer momentum by name; leader only."""
        engine, _ = self._leader()
        anchors: dict[str, torch.Tensor] = {}
        momenta: dict[str, torch.Tensor] = {}
        for index, (name, count, _dtype, role) in enumerate(self.model.layout()):
            if role != _C.MAX:
                anchors[name] = torch.empty(count, dtype=torch.float32, device="cpu")
                momenta[name] = torch.empty_like(anchors[name])
                engine.read_anchor(index, anchors[name].data_ptr(), momenta[name].data_ptr())
        return anchors, momenta

    def _leader(self) -> tuple[_C.Engine, Report]:
        if self._engine is None or self._report is None:
            raise Closed("only the node's leader (local rank 0) speaks to other nodes")
        return self._engine, self._report

    def _look(self, engine: _C.Engine) -> dict[str, Any]:
        """What every rank of the node knows of the job."""
        return {
            "members": engine.members(),
            "version": engine.version(),
            "job_step": engine.job_step(),
        }

    def _take_view(self, view: dict[str, Any]) -> None:
        self.members = tuple(Member(**row) for row in view["members"])
        self.version = view["version"]
        self.job_step = view["job_step"]
        mine = [m.slot for m in self.members if m.node_rank == self.config.node_rank]
        self.slot = mine[0] if mine else 0
        self._interval = self.config.schedule.at(self.job_step)


class _MasterGone:
    """Notices that the master with which the launcher spoke a moment ago is there no more.

    A job may end while a node's Python starts; nobody would tell that node. A master that was
    killed and comes back soon is waited for.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._patience = min(max(_GONE_SECONDS, 3 * config.lease), config.timeout)
        self._seen = self._asked = time.monotonic()

    def for_good(self) -> bool:
        now = time.monotonic()
        if not self._config.master_seen or now - self._asked < _GONE_ASK_SECONDS:
            return False
        self._asked = now
        config = self._config
        try:
            _C.status(config.master_url, config.job_id, config.token, _GONE_ASK_MS)
        except SoloError:
            return now - self._seen > self._patience
        self._seen = now
        return False

    def text(self) -> str:
        return (
            f"the master at {self._config.master_url} answered when this node was started and has "
            f"been away for {self._patience:.0f} s: the job has ended meanwhile, or its master has "
            "died. Start the job again, node 0 first"
        )


def engine_settings(config: Config) -> dict[str, Any]:
    """The keyword arguments of ``_C.Engine`` for these settings."""
    torch_version = torch.__version__.partition("+")[0]  # CPU and GPU builds may be mixed
    return {
        "job_id": config.job_id,
        "master_url": config.master_url,
        "worker_url": config.worker_url,
        "node_rank": config.node_rank,
        "device_count": config.device_count,
        "token": config.token,
        "insecure": config.insecure,
        "min_nodes": config.min_nodes if config.nnodes is None else config.nnodes,
        "timeout_ms": int(config.timeout * 1000),
        "lease_ms": int(config.lease * 1000),
        "streams": config.streams,
        "interval": str(config.schedule),
        "outer": outer.resolve(config.outer),
        "codec": config.codec,
        "versions": f"solo={solo.__version__} torch={torch_version}",
        "state_dir": config.state_dir,
    }
