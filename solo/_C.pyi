from collections.abc import Callable
from typing import Any, Final, TypedDict, TypeVar

_Row = TypeVar("_Row", bound=tuple[Any, ...])

F32: Final[int]
F64: Final[int]
F16: Final[int]
BF16: Final[int]
I8: Final[int]
U8: Final[int]
I16: Final[int]
I32: Final[int]
I64: Final[int]
BOOL: Final[int]

PARAM: Final[int]
EXACT: Final[int]
MEAN: Final[int]
MAX: Final[int]

MERGED: Final[int]
ALONE: Final[int]
REJOINED: Final[int]

WIRE_VERSION: Final[int]

Layout = list[tuple[str, int, int, int]]  # name, elements, dtype, role

class Joined(TypedDict):
    version: int
    job_step: int
    slot: int
    member_count: int
    founder: bool
    replaced: bool

class Result(TypedDict):
    outcome: int
    version: int
    round: int
    member_count: int
    contributor_count: int
    attempts: int
    zero_inner_momentum: bool
    digest: int
    sent_bytes: int
    received_bytes: int
    wait_us: int
    exchange_us: int
    apply_us: int

class Engine:
    def __new__(
        cls,
        *,
        job_id: str | None = None,
        master_url: str | None = None,
        worker_url: str | None = None,
        node_name: str | None = None,
        node_rank: int = 0,
        device_count: int = 1,
        token: str | None = None,
        insecure: bool = False,
        min_nodes: int = 0,
        timeout_ms: int = 0,
        lease_ms: int = 0,
        streams: int = 0,
        start_step: int = 0,
        interval: str | None = None,
        outer: str | None = None,
        codec: str | None = None,
        versions: str | None = None,
        state_dir: str | None = None,
        same_host_shm: int = 1,
    ) -> Engine: ...
    def attach(self, layout: Layout, data: list[int], /) -> Joined: ...
    def submit(
        self,
        data: list[int],
        keep: object,
        *,
        samples: int,
        steps: int,
        lr_sum: float,
        final: bool,
    ) -> None: ...
    def wait(self, seconds: float, /) -> Result | None: ...
    def waiting_for(self) -> str: ...
    def due(self) -> bool: ...
    def over(self) -> bool: ...
    def version(self) -> int: ...
    def job_step(self) -> int: ...
    def members(self) -> list[dict[str, Any]]: ...
    def events(self) -> list[str]: ...
    def read_anchor(self, index: int, anchor: int, momentum: int, /) -> None: ...
    def leave(self, finished: bool, reason: str, /) -> None: ...
    def close(self) -> None: ...

class Master:
    def __new__(
        cls,
        url: str,
        *,
        job_id: str | None = None,
        listen_fd: int = 0,
        token: str | None = None,
        insecure: bool = False,
        min_nodes: int = 0,
        expected_nodes: int = 0,
        timeout_ms: int = 0,
        lease_ms: int = 0,
        events_path: str | None = None,
        linger: bool = False,
    ) -> Master: ...
    def run(self) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...

def version() -> str: ...
def isa() -> str: ...
def error_name(code: int, /) -> str: ...
def memory_needed(layout: Layout, **config: Any) -> int: ...
def status(
    url: str, job_id: str | None = None, token: str | None = None, timeout_ms: int = 1000
) -> dict[str, Any]: ...
def log_start(least: int, /) -> None: ...
def log_lines() -> list[tuple[int, str]]: ...

class File:
    def __init__(self, path: str | bytes) -> None: ...
    def info(self) -> tuple[int, int, int, int, int, str]: ...
    def cached(self) -> int: ...
    def read(self, offset: int, size: int) -> bytes: ...

class Arena:
    def __init__(self, bytes: int, congruent_to: int, file: File | None = None) -> None: ...
    @property
    def address(self) -> int: ...
    def slice(self, offset: int, bytes: int) -> Any: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Checkpoint:
    def __init__(
        self,
        source: Any,
        base: int = 0,
        size: int = 0,
        allowed: tuple[str, ...] = (),
        placeholders: bool = False,
        allow_trailing: bool = False,
        allow_expanded: bool = False,
        pickle_only: int = 0,
        constants: int = 0,
        metadata_max: int = 0,
        tensors_max: int = 0,
        depth_max: int = 0,
    ) -> None: ...
    def info(self) -> dict[str, Any]: ...
    def faults(self) -> list[tuple[str, int, str]]: ...
    def fault_count(self) -> int: ...
    def storages(self, kind: type[_Row], /) -> list[_Row]: ...
    def tensors(self, kind: type[_Row], /) -> list[_Row]: ...
    def names(self, kind: type[_Row], /) -> list[_Row]: ...
    def records(self) -> list[tuple[str, int, int, int, int]]: ...
    def note(self) -> str: ...
    def metadata(self) -> tuple[bytes, bytes]: ...
    def local_check(self, storage: int, header: bytes | memoryview, /) -> None: ...
    def header_offset(self, storage: int, /) -> int: ...
    def tensor_metadata(self, tensor: int, /) -> dict[str, bool]: ...
    def build(
        self,
        tensors: list[Any],
        storage: Callable[[int], Any],
        resolve: Callable[[str], Any],
        call: Callable[[str, tuple[Any, ...], bool], Any],
        state: Callable[[Any, str, Any], None],
        /,
    ) -> Any: ...

class Reading:
    def __init__(
        self,
        file: File,
        checkpoint: Checkpoint | None,
        reads: list[tuple[int, int, int, int]],
        threads: int,
        direct: int,
        memory: Any,
        base: int,
        verify: bool,
        /,
    ) -> None: ...
    def wait(self, tick: Callable[[int, int, int], None] | None, /) -> list[int]: ...

def shards(
    json: bytes, /
) -> tuple[list[tuple[str, int]], list[str], int, list[tuple[str, int, str]]]: ...
def chunk(
    file: File, base: int, size: int, /
) -> tuple[int, int, int, tuple[int, ...], int] | list[tuple[str, int, str]]: ...
def dtype_names() -> list[tuple[str, int]]: ...
def sniff(head: bytes, file_bytes: int, /) -> str: ...
def swap(from_: str, to: str, /) -> bool: ...
def store(address: int, bytes: bytes, /) -> None: ...
def crc32(bytes: Any, start: int = 0, /) -> int: ...
def crc32_at(address: int, size: int, /) -> int: ...
