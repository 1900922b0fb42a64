"""What the leader tells the user: short lines on stderr, and scalars for TensorBoard."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from typing import TYPE_CHECKING, Any

from solo import _C, voice
from solo.config import Config

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

ROUND_SECONDS = 5.0  # at most one line for a round in that time
FIRST_WAIT_SECONDS = 3.0  # a wait is told after that
NEXT_WAIT_SECONDS = 10.0  # and then every so often
LOOK_SECONDS = 0.5  # how often the member list is looked at
_LEVEL_NAMES = ("debug", "info", "warn", "error")
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)

_log = logging.getLogger("solo")


class Report:
    """The voice of one node's leader.

    Args:
        config: names the node and the folder for logs.
    """

    def __init__(self, config: Config) -> None:
        self._node = config.node_rank
        self._verbose = config.verbose
        self._min_nodes = config.min_nodes
        self._worker_url = config.worker_url
        self._names: dict[int, str] = {}
        self._gone: dict[int, str] = {}  # why the master last lost this node, or let it go
        self._looked_at = 0.0
        self._round_told = 0.0
        self._merged_at = time.monotonic()
        self._dropped = False  # by the master, and not back yet
        self._rejoined_told = False  # by an event; the merge that brought it says the same
        self._twins: set[Any] = set()  # who was told to train on the same data
        self._nonfinite: tuple[Any, Any] | None = None  # node and round that were told last
        self._wait_began: float | None = None
        self._wait_told = 0.0
        self._forecast_told = False
        self._folder = config.job_dir
        self._writer: SummaryWriter | None = None
        _C.log_start(0 if config.verbose else 2)

    def say(self, text: str, *, level: str = "info", event: str = "sync") -> None:
        """One line on stderr."""
        voice.say(self._node, text, level=level, event=event)

    def joined(self, joined: _C.Joined, members: list[dict[str, Any]]) -> None:
        """The node is in: one line for itself and one per member."""
        self._wait_began = None
        what = f"joins at version {joined['version']}"
        if joined["founder"]:  # one that comes back, or a job that goes on from --state_dir
            what = (
                f"is back at version {joined['version']}" if joined["version"] else "founds the job"
            )
        values = "takes the job's values" if joined["replaced"] else "keeps its values"
        self.say(f"{what} as slot {joined['slot']} of {len(members)}, {values}")
        for member in members:
            ranks = f"{member['device_count']} rank{'s' * (member['device_count'] != 1)}"
            self.say(
                f"  slot {member['slot']}: node {member['node_rank']}, {member['name']} "
                f"({member['address']}), {ranks}"
            )
        self._names = {m["node_rank"]: f"{m['name']} ({m['address']})" for m in members}
        self._tensorboard()  # its import takes a while: now, not in the first round
        self._merged_at = time.monotonic()

    def waiting(self, engine: _C.Engine, what: str) -> None:
        """Called while something is waited for: says for whom, soon and then now and then."""
        self.follow(engine)
        now = time.monotonic()
        if self._wait_began is None:
            self._wait_began, self._wait_told = now, now - NEXT_WAIT_SECONDS + FIRST_WAIT_SECONDS
        if now - self._wait_told >= NEXT_WAIT_SECONDS:
            self._wait_told = now
            whom = self._whom(engine)
            waited = now - self._wait_began
            self.say(f"waiting {what}, {waited:.0f} s" + (f": {whom}" if whom else ""))

    def too_few(self, engine: _C.Engine) -> str:
        """That ``--min_nodes`` asks for more nodes; "" if it does not."""
        here = len(engine.members())  # none are known before the master has let this node in
        if here >= self._min_nodes or self._min_nodes == 1:
            return ""
        return f"--min_nodes asks for {self._min_nodes}" + (f", {here} here" if here else "")

    def _whom(self, engine: _C.Engine) -> str:
        few = self.too_few(engine)
        whom = "" if few and engine.members() else engine.waiting_for()
        return "; ".join(filter(None, (whom, few)))

    def merged(
        self,
        engine: _C.Engine,
        result: _C.Result,
        view: dict[str, Any],
        *,
        steps: int,
        byte_count: int,
    ) -> None:
        """A round was committed: a line (not too often) and scalars."""
        self.follow(engine)  # first: what happened before says why
        now = time.monotonic()
        since, self._merged_at, self._wait_began = now - self._merged_at, now, None
        exchange = (result["exchange_us"] + result["apply_us"]) / 1e6
        wait = result["wait_us"] / 1e6
        if result["outcome"] == _C.REJOINED:
            if not self._rejoined_told:
                self.say(f"was out of the job and is back at version {result['version']}")
            self._rejoined_told = False
        elif now - self._round_told >= ROUND_SECONDS:
            self._round_told = now
            alone = ", alone" if result["outcome"] == _C.ALONE else ""
            self.say(
                f"round {result['round']}: {result['contributor_count']} of "
                f"{result['member_count']} nodes{alone}, {steps} steps, "
                f"{result['sent_bytes'] / 1e6:.2f} MB sent, {wait:.2f} s of "
                f"waiting and {exchange:.2f} s of merging"
            )
        if not self._forecast_told and steps and result["member_count"] > 1:
            self._forecast_told = True
            self._forecast(since - exchange - wait, exchange, steps, byte_count)
        self._tell_members(view["members"])
        self._scalars(result, view, wait=wait, exchange=exchange)

    def _forecast(self, training: float, exchange: float, steps: int, byte_count: int) -> None:
        share = 100 * exchange / max(exchange + training, 1e-9)
        self.say(
            f"a merge of {byte_count / 1e6:.2f} MB takes {exchange:.2f} s, {steps} steps take "
            f"{max(training, 0):.1f} s: about {share:.0f} % of the time goes into the sync"
        )

    def follow(self, engine: _C.Engine) -> None:
        """Tell what has happened since the last call."""
        for level, text in _C.log_lines():
            if _log.hasHandlers():
                _log.log(_LEVELS[level], "%s", text)
            elif _LEVELS[level] >= logging.WARNING or self._verbose:
                self.say(text, level=_LEVEL_NAMES[level], event="log")
        for line in engine.events():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                sentence = self._sentence(event)
                if sentence or self._verbose:
                    self.say(sentence or line, event=str(event.get("event")))
        now = time.monotonic()
        if now - self._looked_at > LOOK_SECONDS:
            self._looked_at = now
            self._tell_members(engine.members())

    def _sentence(self, event: dict[str, Any]) -> str:
        """An event of libsolo in words; "" if only --verbose shows it."""
        kind = str(event.get("event"))
        if kind in ("left", "lost"):  # said when the node is seen to be missing
            self._gone[event.get("node", -1)] = str(event.get("text") or kind)
        if kind == "master_found" and self._dropped:
            kind = "taken_back"
        if kind == "donor_lost" and "node" not in event:
            kind = "stateless"
        if kind == "twins":  # in every round: told once of each two
            if event.get("text") in self._twins:
                return ""
            self._twins.add(event.get("text"))
        if kind == "nonfinite":  # one event for each part of the model that was being sent
            known_by = (event.get("node"), event.get("round"))
            if known_by == self._nonfinite:
                return ""
            self._nonfinite = known_by
        self._rejoined_told = self._rejoined_told or kind == "rejoined"
        self._dropped = kind == "dropped" or (self._dropped and kind != "taken_back")
        known = {"text": "no reason given", "node": "?", "other": "?", "version": "?", **event}
        known["worker_url"] = self._worker_url or "the address of its route to the master"
        return _SENTENCES.get(kind, "").format_map(known)

    def _tell_members(self, members: list[dict[str, Any]]) -> None:
        """Who came and who went since the last look."""
        names = {m["node_rank"]: f"{m['name']} ({m['address']})" for m in members}
        if self._names and self._node in names:
            for rank in names.keys() - self._names.keys() - {self._node}:
                self.say(f"node {rank} joined: {names[rank]}, {len(names)} nodes now")
            for rank in self._names.keys() - names.keys():
                alone = ": this node is alone now" if len(names) == 1 else ""
                why = self._gone.pop(rank, "")
                self.say(
                    f"node {rank} is gone{why and f' ({why})'}: {self._names[rank]}, "
                    f"{len(names)} left{alone}"
                )
        self._names = names

    def _scalars(
        self, result: _C.Result, view: dict[str, Any], *, wait: float, exchange: float
    ) -> None:
        writer = self._tensorboard()
        if writer is not None:
            step = view["job_step"]
            for name, value in (
                ("members", result["member_count"]),
                ("contributors", result["contributor_count"]),
                ("seconds/exchange", exchange),
                ("seconds/wait", wait),
                ("bytes/sent", result["sent_bytes"]),
                ("bytes/received", result["received_bytes"]),
                ("version", result["version"]),
            ):
                try:
                    writer.add_scalar(f"solo/{name}", value, step)
                except Exception as error:  # of an earlier write: TensorBoard's thread has ended
                    self._writer = None
                    self.say(f"no more TensorBoard scalars: {error}; training goes on")
                    return

    def _tensorboard(self) -> SummaryWriter | None:
        if self._writer is None and self._folder is not None:
            folder, self._folder = self._folder, None  # one try
            try:
                from torch.utils.tensorboard import SummaryWriter

                self._writer = SummaryWriter(str(folder / "tensorboard" / f"node{self._node}"))
            except Exception as error:  # its own too, as with a protobuf that does not suit it
                _log.info("no TensorBoard scalars: %s", error)
        return self._writer

    def close(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._writer.close()
            self._writer = None


_SENTENCES = {
    "aborted": "a round was given up ({text}); it is run again with who is left",
    "dropped": "fell out of the job: {text}. It trains on, comes back by itself and takes the "
    "job's values",
    "donor_lost": "node {node}, which was sending the job's state, is gone; another is asked",
    "master_found": "the master is back",
    "master_lost": "no connection to the master ({text}); training goes on meanwhile",
    "nonfinite": "node {node} has a NaN or Inf in {text}: it is left out of this round, and "
    "gets the others' values",
    "odd": "node {node} holds other bits than the others and takes theirs",
    "rejoined": "fell out of the job and is back at version {version}; its last interval is lost",
    "state_lost": "no node holds version {version} any more; the job goes on from an older one",
    "taken_back": "is in the job again",
    "twins": "{text}: half of the work is lost. Give each node its own data: solo.data_rank(), "
    "solo.data_world_size()",
    "unreached": "node {node} cannot be reached at {text}. Check its --worker_url, and the "
    "firewall between the two",
    "stateless": "the job's state does not come ({text}); it is asked for again. The other nodes "
    "must reach this one at {worker_url}: see their logs, and --worker_url",
    "waiting": "{text}",
}
