"""What ``solorun`` tells a rank through the environment, as one frozen object."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from solo.errors import AuthError, InvalidArgument
from solo.schedule import Schedule

OUTER_RULES = ("auto", "avg", "slowmo", "nesterov")
CODECS = ("fp32", "bf16", "int8", "int4")
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"", "0", "false", "no", "off"}


@dataclass(frozen=True)
class Config:
    """The settings of one rank.

    Attributes:
        master_url: where the job's master listens; "" if none was given.
        worker_url: where other nodes reach this one; None: the route to the master decides.
        node_rank: this node's identity in the job.
        device_count: ranks on this node.
        nnodes: nodes of the fixed mode; None: elastic.
        timeout: seconds a start-up wait may last.
        schedule: steps between merges.
        outer: outer step, "auto" or libsolo's text ("avg", "nesterov:lr=0.7", ...).
        codec: how deltas travel.
        job_id: name of the job.
        job_dir: this job's folder for logs; None: no logs.
        token: the shared secret; None: none.
        insecure: other than loopback addresses without a token.
        min_nodes: nodes that must be there to begin.
        state_dir: where the last anchor is kept; None: nowhere.
        memory: bytes that each rank may use; None: what the machine has.
        sync_at_epoch_end: merge when a pass over a DataLoader ends.
        linger: go on after the founders have finished.
        lease: seconds of silence after which a node is dropped.
        streams: connections per peer; 0: chosen.
        master_seen: the launcher has just spoken with the master: if it is gone when this rank
            asks, it will hardly come back.
        verbose: say more.
        rank, world_size, local_rank, local_world_size: of torch's world.
    """

    master_url: str = ""
    worker_url: str | None = None
    node_rank: int = 0
    device_count: int = 1
    nnodes: int | None = None
    timeout: float = 300.0
    schedule: Schedule = dataclasses.field(default=Schedule((0,), (100,)))
    outer: str = "auto"
    codec: str = "fp32"
    job_id: str = "default"
    job_dir: pathlib.Path | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    insecure: bool = False
    min_nodes: int = 1
    state_dir: str | None = None
    memory: int | None = None
    sync_at_epoch_end: bool = True
    linger: bool = False
    lease: float = 10.0
    streams: int = 0
    master_seen: bool = False
    verbose: bool = False
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def elastic(self) -> bool:
        """Each node is a torch world of its own."""
        return self.nnodes is None

    @property
    def is_leader(self) -> bool:
        """This rank speaks for its node."""
        return self.local_rank == 0

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Config:
        """Read ``SOLO_*`` and torchrun's variables.

        Raises:
            InvalidArgument: a variable has no sense; the text names it, its value and the fix.
            AuthError: the token file cannot be used.
        """
        read = _Reader(os.environ if env is None else env)
        local_world_size = read.count("LOCAL_WORLD_SIZE", 1, least=1)
        job_dir = read.text("SOLO_JOB_DIR")
        config = cls(
            master_url=read.text("SOLO_MASTER_URL") or "",
            worker_url=read.text("SOLO_WORKER_URL"),
            node_rank=read.count("SOLO_NODE_RANK", read.count("GROUP_RANK", 0)),
            device_count=read.count("SOLO_DEVICE_COUNT", local_world_size, least=1),
            nnodes=read.count("SOLO_NNODES", 0) or None,
            timeout=read.seconds("SOLO_TIMEOUT", 300.0),
            schedule=Schedule.parse(read.text("SOLO_SYNC_INTERVAL") or "100"),
            outer=read.choice("SOLO_OUTER", "auto", OUTER_RULES),
            codec=read.choice("SOLO_CODEC", "fp32", CODECS),
            job_id=read.text("SOLO_JOB_ID") or "default",
            job_dir=pathlib.Path(job_dir) if job_dir else None,
            token=read.token(),
            insecure=read.flag("SOLO_INSECURE"),
            min_nodes=read.count("SOLO_MIN_NODES", 1, least=1),
            state_dir=read.text("SOLO_STATE_DIR"),
            memory=read.count("SOLO_MEMORY", 0) or None,
            sync_at_epoch_end=not read.flag("SOLO_NO_SYNC_AT_EPOCH_END"),
            linger=read.flag("SOLO_LINGER"),
            lease=read.seconds("SOLO_LEASE", 10.0),
            streams=read.count("SOLO_STREAMS", 0),
            master_seen=read.flag("SOLO_MASTER_SEEN"),
            verbose=read.flag("SOLO_VERBOSE"),
            rank=read.count("RANK", 0),
            world_size=read.count("WORLD_SIZE", local_world_size, least=1),
            local_rank=read.count("LOCAL_RANK", 0),
            local_world_size=local_world_size,
        )
        if config.device_count != local_world_size:
            raise InvalidArgument(
                f"SOLO_DEVICE_COUNT={config.device_count} but torchrun started "
                f"{local_world_size} ranks on this node (LOCAL_WORLD_SIZE): start it with "
                f"solorun --device_count {local_world_size}"
            )
        return config

    def replace(self, **changes: object) -> Config:
        """A copy with the given fields changed; None leaves a field as it is."""
        given = {key: value for key, value in changes.items() if value is not None}
        return dataclasses.replace(self, **given)  # type: ignore[arg-type]


class _Reader:
    """Variables of the environment as values, or an error that names the variable."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def text(self, name: str) -> str | None:
        return self._env.get(name, "").strip() or None

    def count(self, name: str, default: int, *, least: int = 0) -> int:
        text = self.text(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            raise InvalidArgument(f"{name}={text!r} is not a whole number") from None
        if value < least:
            raise InvalidArgument(f"{name}={value} must be at least {least}")
        return value

    def seconds(self, name: str, default: float) -> float:
        text = self.text(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            raise InvalidArgument(f"{name}={text!r} is not a number of seconds") from None
        if not 0 < value < 1e9:
            raise InvalidArgument(f"{name}={text}: seconds must be more than 0")
        return value

    def flag(self, name: str) -> bool:
        text = self._env.get(name, "").strip().lower()
        if text in _TRUE:
            return True
        if text in _FALSE:
            return False
        raise InvalidArgument(f"{name}={text!r} is neither 1 nor 0")

    def choice(self, name: str, default: str, known: tuple[str, ...]) -> str:
        text = self.text(name)
        if text is None:
            return default
        check_choice(name, text, known)
        return text

    def token(self) -> str | None:
        path = self.text("SOLO_TOKEN_FILE")
        return read_token(pathlib.Path(path)) if path else self.text("SOLO_TOKEN")


def check_choice(name: str, text: str, known: tuple[str, ...]) -> None:
    """Refuse a word (up to its ':') that is not one of ``known``."""
    if text.partition(":")[0] not in known:
        raise InvalidArgument(f"{name}={text!r} is not known: choose one of {', '.join(known)}")


def read_token(path: pathlib.Path) -> str:
    """The secret in a file that nobody else may read."""
    try:
        mode = path.stat().st_mode
        token = path.read_text().strip() if stat.S_ISREG(mode) else ""  # a pipe may never end
    except OSError as error:
        raise AuthError(f"token file {path}: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise AuthError(f"token file {path} is no regular file")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise AuthError(f"token file {path} can be read by others: chmod 600 {path}")
    if not token:
        raise AuthError(f"token file {path} is empty")
    return token
