"""The ranks of one node: the leader speaks for them and tells them what came of it.

With one rank per node nothing here communicates. With several, a private gloo group carries
short messages, and the leader's tensors are broadcast over it (or, for tensors on a GPU, over
the node's own training group).
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from solo.config import Config
from solo.errors import InvalidArgument, SoloError, from_code

ALIVE_SECONDS = 5.0  # the leader says that often that it still works
SILENCE_SECONDS = 60.0  # a leader that says nothing for so long is given up
POLL_SECONDS = 0.02  # how often, at most, the ranks ask whether a merge is due
_BUCKET_BYTES = 64 << 20


class Node:
    """This node's ranks, seen from one of them.

    Args:
        config: says how many ranks there are and which one this is.

    Raises:
        InvalidArgument: the node has several ranks, but torch.distributed was not set up.
    """

    def __init__(self, config: Config) -> None:
        self.is_leader = config.is_leader
        self.size = config.local_world_size
        self._talk: dist.ProcessGroup | None = None  # private, gloo
        self.group: dist.ProcessGroup | None = None  # for DDP and tensors on other devices
        self._steps_to_poll = self._skipped = 1
        self._polled_at = 0.0
        self._spoke_at = 0.0
        if self.size > 1:
            self._make_groups(config)

    def _make_groups(self, config: Config) -> None:
        if not dist.is_initialized():
            raise InvalidArgument(
                f"this node has {self.size} ranks, but the script has not called "
                "torch.distributed.init_process_group: they would train apart. Call it (or "
                "solo.init()) first, or start the node with --device_count 1"
            )
        ranks = node_ranks(config)
        self._first = ranks[0]
        silence = datetime.timedelta(seconds=SILENCE_SECONDS)
        self._talk = dist.new_group(
            ranks, timeout=silence, backend="gloo", use_local_synchronization=True
        )
        spans_nodes = dist.get_world_size() != self.size
        self.group = node_group(config) if spans_nodes else dist.group.WORLD

    def together(self, work: Callable[[Callable[[], None]], dict[str, Any]]) -> dict[str, Any]:
        """Let the leader do ``work``; its result, or its error, is every rank's.

        Args:
            work: given a function to call now and then while it waits.
        """
        if self.size == 1:
            return work(lambda: None)
        if not self.is_leader:
            return self._hear()
        try:
            result = work(self._alive)
        except SoloError as error:
            self._say({"error": str(error), "code": error.code})
            raise
        except BaseException as error:
            self._say({"error": f"the node's leader gave up: {error!r}", "code": -12})
            raise
        self._say({"result": result})
        return result

    def _alive(self) -> None:
        if time.monotonic() - self._spoke_at > ALIVE_SECONDS:
            self._say({})

    def _say(self, message: dict[str, Any]) -> None:
        self._spoke_at = time.monotonic()
        payload = bytearray(json.dumps(message).encode())
        self._broadcast(torch.tensor([len(payload)], device="cpu"))
        self._broadcast(torch.frombuffer(payload, dtype=torch.uint8))

    def _hear(self) -> dict[str, Any]:
        while True:
            size = torch.zeros(1, dtype=torch.int64, device="cpu")
            self._broadcast(size)
            payload = torch.empty(int(size), dtype=torch.uint8, device="cpu")
            self._broadcast(payload)
            message = json.loads(bytes(payload.tolist()))
            if "error" in message:
                raise from_code(message["code"], message["error"])
            if "result" in message:
                result: dict[str, Any] = message["result"]
                return result

    def _broadcast(self, tensor: Tensor) -> None:
        dist.broadcast(tensor, src=self._first, group=self._talk)

    @torch.no_grad()
    def share(self, tensors: Sequence[Tensor]) -> None:
        """Give every rank the leader's values of these tensors."""
        if self.size == 1:
            return
        on_cpu = [t for t in tensors if t.device.type == "cpu"]
        elsewhere = [t for t in tensors if t.device.type != "cpu"]
        for group, batch in ((self._talk, on_cpu), (self.group, elsewhere)):
            if batch:
                assert group is not None
                dist._broadcast_coalesced(  # type: ignore[attr-defined]
                    group, batch, _BUCKET_BYTES, 0
                )

    def agree(self, wanted: Callable[[], bool]) -> bool:
        """Whether the leader's ``wanted()`` is true, asked by all ranks at the same step.

        Asking costs a message, so with short steps it is done at some of them only; the
        leader says in each answer how many steps to skip.
        """
        if self.size == 1:
            return wanted()
        self._steps_to_poll -= 1
        if self._steps_to_poll > 0:
            return False
        answer = torch.zeros(2, dtype=torch.int64, device="cpu")
        if self.is_leader:
            now = time.monotonic()
            step = max(now - self._polled_at, 1e-6) / self._skipped
            self._polled_at = now
            answer[0] = wanted()
            answer[1] = max(1, min(64, int(POLL_SECONDS / step)))
        self._broadcast(answer)
        self._steps_to_poll = self._skipped = int(answer[1])
        return bool(answer[0])


def node_ranks(config: Config) -> list[int]:
    """The ranks of this node in torch's world, as torchrun numbers them.

    Raises:
        InvalidArgument: nodes have different numbers of ranks.
    """
    size, world = config.local_world_size, dist.get_world_size()
    if world % size:
        raise InvalidArgument(
            f"the world has {world} ranks, which is no multiple of this node's {size}: with "
            "--nnodes every node needs the same --device_count"
        )
    first = dist.get_rank() - config.local_rank
    return list(range(first, first + size))


_node_groups: dict[tuple[int, ...], dist.ProcessGroup] = {}


def node_group(config: Config) -> dist.ProcessGroup:
    """The group of this node's ranks, on the script's own backend; made once."""
    ranks = tuple(node_ranks(config))
    group = _node_groups.get(ranks)
    if group is None:
        made = dist.new_group(list(ranks), use_local_synchronization=True)
        assert isinstance(made, dist.ProcessGroup)
        group = _node_groups[ranks] = made
    return group
