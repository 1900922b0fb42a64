"""The explicit API: one object that merges a model with the other nodes' every so many steps."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from solo import job
from solo import outer as outer_rules
from solo.config import CODECS, OUTER_RULES, Config, check_choice
from solo.errors import InvalidArgument
from solo.inner import Node
from solo.merger import Merger
from solo.model import Model
from solo.schedule import Schedule


class IntervalSync:
    """Merges a model with those of the other nodes, every ``interval`` optimizer steps.

    ::

        sync = solo.IntervalSync(model, optimizer, interval=100)
        for batch in data:
            train(batch)
            optimizer.step()
            sync.step()
        sync.close()

    When it is made it joins the job: the model then has the job's values. On a node with
    several ranks, every rank makes one and makes the same calls.

    Args:
        model: one module or several; a DDP wrapper stands for what it wraps.
        optimizer: the inner optimizer or optimizers; for learning rates and outer rules.
        interval: steps between merges, or stages such as "0:1,500:16". Default: as started
            (``--sync_interval``), else 100. Every node must give the same.
        outer: "auto", "avg", "slowmo" or "nesterov", with parameters after a colon.
        codec: "fp32", "bf16", "int8" or "int4".
        master_url: where the job's master listens; default: as started.
        job_id: name of the job; default: as started.
        config: all settings at once, instead of those of the environment.

    Raises:
        InvalidArgument: a setting has no sense, or no master is known.
        Refused, Mismatch, VersionMismatch, AuthError, TimedOut: the job does not take this node.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        *,
        interval: int | str | None = None,
        outer: str | None = None,
        codec: str | None = None,
        master_url: str | None = None,
        job_id: str | None = None,
        config: Config | None = None,
    ) -> None:
        if outer is not None:
            check_choice("outer", outer, OUTER_RULES)
        if codec is not None:
            check_choice("codec", codec, CODECS)
        config = (config or Config.from_env()).replace(
            schedule=None if interval is None else Schedule.parse(interval),
            outer=outer,
            codec=codec,
            master_url=master_url,
            job_id=job_id,
        )
        if not config.master_url:
            raise InvalidArgument(
                "no master is known: start the script with solorun --solo, or give "
                "master_url='tcp://HOST:PORT' and run `solorun master` there"
            )
        _stand_down()
        modules = [model] if isinstance(model, nn.Module) else list(model)
        ignored = [
            set(m.parameters_to_ignore) if isinstance(m, DistributedDataParallel) else set()
            for m in modules
        ]
        bare = [m.module if isinstance(m, DistributedDataParallel) else m for m in modules]
        self._optimizers: list[Optimizer] = (
            []
            if optimizer is None
            else [optimizer]
            if isinstance(optimizer, Optimizer)
            else list(optimizer)
        )
        self._merger = Merger(
            config, Model(bare, ignored=ignored), Node(config), lambda: self._optimizers
        )
        self._merger.join()
        job.follow(self._merger)

    def step(self, samples: int | None = None) -> bool:
        """Count an optimizer step, and merge if it is time to; call it after each ``step()``.

        Args:
            samples: what this rank trained on in this step, as its weight; None: unknown, and
                every node is weighed by its steps.

        Returns:
            Whether it merged.

        Raises:
            JobOver: the nodes that founded the job have finished.
            SoloError: the merge failed; the model is as it was.
        """
        lr = outer_rules.learning_rate(self._optimizers[0]) if self._optimizers else 0.0
        return self._merger.step(lr=lr, samples=samples)

    def sync(self) -> dict[str, Any]:
        """Merge now; every node should, or is asked to at its next step. The merge's figures."""
        return self._merger.merge()

    @property
    def version(self) -> int:
        """Merges that the job has committed."""
        return self._merger.version

    @property
    def job_step(self) -> int:
        """Optimizer steps that the job has done, as of the last merge."""
        return self._merger.job_step

    @property
    def member_count(self) -> int:
        """Nodes in the job, as of the last merge."""
        return len(self._merger.members)

    def state_dict(self) -> dict[str, Any]:
        """Where the sync is; on the leader with the anchor and outer momentum.

        The anchor lives on in the other members and in ``--state_dir``; it is here for those
        who want it in a checkpoint of their own.
        """
        merger = self._merger
        state: dict[str, Any] = {
            "version": merger.version,
            "job_step": merger.job_step,
            "step_count": merger.step_count,
            "steps": merger.steps,
            "samples": merger.samples,
            "lr_sum": merger.lr_sum,
        }
        if merger.node.is_leader:
            state["anchor"], state["momentum"] = merger.anchor()
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on within an interval that was begun: the counters of ``state_dict()``.

        The parameters come from the job (or, for its first node, from the model as it was
        when this object was made: load them before).
        """
        merger = self._merger
        merger.step_count = int(state["step_count"])
        merger.steps = int(state["steps"])
        merger.samples = None if state["samples"] is None else int(state["samples"])
        merger.lr_sum = float(state["lr_sum"])

    def close(self) -> None:
        """Merge what is left and leave the job; safe to call twice."""
        self._merger.finish()

    def __enter__(self) -> IntervalSync:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._merger.leave(finished=False, reason=kind.__name__)


def _stand_down() -> None:
    """The script drives the sync itself: the hooks, if installed, leave it alone."""
    from solo import takeover

    active = takeover.active()
    if active is not None:
        active.stand_down()
