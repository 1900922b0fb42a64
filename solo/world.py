"""A fixed world of nodes (``--nnodes``): how it meets, and how its nodes wait for each other's end.

torchrun's static rendezvous and its exit barrier wait without a word, and their errors name
nobody. Here the same store is used, every node writes into it that it has come and that it has
ended, and whoever waits says for whom: at once, every ten seconds, and at the deadline.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.api import RendezvousTimeoutError
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from solo import _C, config
from solo.errors import SoloError

FIRST_LINE_S, LINE_EVERY_S = 3.0, 10.0
POLL_S = 0.05
ASK_MS = 1000
CAME, ENDED = "solo/came/", "solo/ended/"

Say = Callable[[list[str]], None]  # a line, and lines below it


def install(say: Say, timeout_s: float) -> None:
    """Replace torchrun's two waits in this process.

    Args:
        say: tells the user.
        timeout_s: how long either wait may last.
    """

    def next_rendezvous(self: StaticTCPRendezvous) -> RendezvousInfo:
        return meet(self, say)

    def exit_barrier(self: SimpleElasticAgent) -> None:
        part(self, say, timeout_s)

    StaticTCPRendezvous.next_rendezvous = next_rendezvous  # type: ignore[method-assign]
    SimpleElasticAgent._exit_barrier = exit_barrier  # type: ignore[method-assign]


class Waiting:
    """Says for whom it is waited: at once if that lasts, and then every ten seconds.

    Args:
        say: tells the user.
        what: what the nodes are waited for to do.
        unknown: what is said of a node that the master does not know.
        timeout_s: how long it may last.
    """

    def __init__(self, say: Say, what: str, unknown: str, nnodes: int, timeout_s: float) -> None:
        self.missing: list[int] = []  # node ranks; kept by whoever waits
        self._say, self._what, self._unknown = say, what, unknown
        self._nnodes, self._timeout_s = nnodes, timeout_s
        self._begun = time.monotonic()
        self._done = threading.Event()

    def table(self) -> list[str]:
        """Who is missing, a line each, with what the master knows of them."""
        rows = {row["node_rank"]: row for row in master_rows()}
        return [
            f"node {rank}: {last_seen(rows[rank]) if rank in rows else self._unknown}"
            for rank in self.missing
        ]

    def _run(self) -> None:
        pause = FIRST_LINE_S
        while not self._done.wait(pause):
            pause = LINE_EVERY_S
            used = time.monotonic() - self._begun
            node = os.environ.get("SOLO_NODE_RANK", "0")
            head = (
                f"node {node}: waiting for {len(self.missing)} of {self._nnodes} nodes "
                f"{self._what}, {used:.0f} s of {self._timeout_s:.0f} s"
            )
            self._say([head, *self.table()])

    @contextlib.contextmanager
    def lines(self) -> Iterator[None]:
        threading.Thread(target=self._run, daemon=True, name="solo waiting").start()
        try:
            yield
        finally:
            self._done.set()

    def over(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() - self._begun > self._timeout_s


def absent(store: Store, prefix: str, nnodes: int) -> list[int]:
    """Nodes that have not written this key yet."""
    return [rank for rank in range(nnodes) if not store.check([f"{prefix}{rank}"])]


def open_store(handler: StaticTCPRendezvous) -> TCPStore:
    """Node 0 has it; the others connect to it, which waits for node 0."""
    return TCPStore(
        handler.master_addr,
        handler.master_port,
        handler.world_size,
        handler.rank == 0,
        handler.timeout,
        wait_for_workers=False,
        multi_tenant=True,
    )


def meet(handler: StaticTCPRendezvous, say: Say) -> RendezvousInfo:
    """Wait for all nodes of the world; a node that starts its ranks again finds them all.

    Raises:
        RendezvousTimeoutError: some did not come; the text names them.
        dist.DistError: the store, which is node 0's, cannot be reached or was lost.
    """
    nnodes, timeout_s = handler.world_size, handler.timeout.total_seconds()
    where = f"at {handler.master_addr}:{handler.master_port}"
    waiting = Waiting(say, where, "never connected", nnodes, timeout_s)
    waiting.missing = [rank for rank in range(nnodes) if rank != handler.rank]
    if handler.rank != 0:
        waiting.missing = [0]  # has the store, so nothing is known of the others yet
    with waiting.lines():
        if handler._store is None:
            try:
                handler._store = open_store(handler)
            except dist.DistError as error:
                raise RendezvousTimeoutError("\n".join([*waiting.table(), str(error)])) from error
        store = PrefixStore(handler.run_id, handler._store)
        store.set(f"{CAME}{handler.rank}", socket.gethostname())
        while missing := absent(store, CAME, nnodes):
            waiting.missing = missing
            if waiting.over():
                raise RendezvousTimeoutError("\n".join(waiting.table()))
            time.sleep(POLL_S)
    bootstrap = RendezvousStoreInfo(handler.master_addr, handler.master_port)
    return RendezvousInfo(store, handler.rank, nnodes, bootstrap)


def part(agent: SimpleElasticAgent, say: Say, timeout_s: float) -> None:
    """This node has ended well; node 0 waits for the others, whose ranks may use its store."""
    store: Any = agent._store
    nnodes, rank = agent._worker_group.group_world_size or 1, agent._worker_group.group_rank
    waiting = Waiting(say, "to end", "unknown to the master", nnodes, timeout_s)
    agent._in_exit_barrier = True
    try:
        store.set(f"{ENDED}{rank}", agent._worker_group.state.name)
        with waiting.lines():
            while rank == 0 and (missing := absent(store, ENDED, nnodes)):
                waiting.missing = missing
                if waiting.over():
                    table = waiting.table()
                    say([f"node 0: ends without {len(missing)} of {nnodes} nodes", *table])
                    return
                time.sleep(POLL_S)
    except dist.DistError:
        pass  # node 0 has gone, and its store with it: there is nobody to tell
    finally:
        agent._in_exit_barrier = False


def master_rows() -> list[dict[str, Any]]:
    """What the master knows of the nodes; nothing if it cannot be asked."""
    env = os.environ
    with contextlib.suppress(SoloError, OSError):
        path = env.get("SOLO_TOKEN_FILE")
        token = config.read_token(pathlib.Path(path)) if path else env.get("SOLO_TOKEN")
        url, job = env.get("SOLO_MASTER_URL", ""), env.get("SOLO_JOB_ID", "")
        rows: list[dict[str, Any]] = _C.status(url, job, token, ASK_MS)["members"]
        return rows
    return []


def last_seen(row: dict[str, Any]) -> str:
    """The last that the master knows of a node, in words."""
    ago = f"{row['last_seen_ms'] / 1000:.0f} s ago ({row['address']})"
    return f"last heard {ago}" if row["live"] else f"was here {ago}, left: {row['left']}"
