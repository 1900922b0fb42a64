"""``init_process_group("solo", pg_options=solo.Options(sync_interval=100))``."""

from __future__ import annotations

from dataclasses import dataclass

from solo.config import CODECS, OUTER_RULES, Config, check_choice
from solo.errors import InvalidArgument
from solo.schedule import Schedule


@dataclass(frozen=True)
class Options:
    """Settings of the "solo" backend; what is None is taken from the environment.

    Attributes:
        sync_interval: merge every so many steps (or stages, "0:1,500:16") instead of reducing
            gradients between nodes at each; None: the backend alone, no interval sync.
        outer: outer step of a merge.
        codec: how deltas travel.
        master_url: where the job's master listens.
        job_id: name of the job.
    """

    sync_interval: int | str | None = None
    outer: str | None = None
    codec: str | None = None
    master_url: str | None = None
    job_id: str | None = None

    def __post_init__(self) -> None:
        if self.sync_interval is not None:
            Schedule.parse(self.sync_interval)
        if self.outer is not None:
            check_choice("outer", self.outer, OUTER_RULES)
        if self.codec is not None:
            check_choice("codec", self.codec, CODECS)


def activate(options: Options, *, world_size: int) -> None:
    """Install the hooks for a group that was made with a sync interval.

    Args:
        options: as the script gave them.
        world_size: ranks of torch's world; if it spans nodes, the job is a fixed one.

    Raises:
        InvalidArgument: no master is known.
    """
    if options.sync_interval is None:
        return
    from solo import ddp

    config = Config.from_env().replace(
        schedule=Schedule.parse(options.sync_interval),
        outer=options.outer,
        codec=options.codec,
        master_url=options.master_url,
        job_id=options.job_id,
    )
    if not config.master_url:
        raise InvalidArgument(
            "Options(sync_interval=...) needs a master: start the script with solorun --solo, "
            "or run `solorun master` and give Options(master_url='tcp://HOST:PORT')"
        )
    nodes = world_size // config.local_world_size
    ddp.install(config.replace(nnodes=nodes if nodes > 1 else None))
