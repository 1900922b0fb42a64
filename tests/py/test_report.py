"""What the leader says of what happens to it."""

from __future__ import annotations

import json
import pathlib
import sys
import types

import pytest

from solo.config import Config
from solo.report import Report


class Engine:
    """As much of an engine as a report asks: its events, who is there, who is waited for."""

    def __init__(self, *events: str, members: int = 1) -> None:
        self._events = list(events)
        self._members = members

    def events(self) -> list[str]:
        told, self._events = self._events, []
        return told

    def members(self) -> list[dict[str, object]]:
        return [
            {"node_rank": rank, "name": "host", "address": f"10.0.0.{rank}"}
            for rank in range(self._members)
        ]

    def waiting_for(self) -> str:
        return "other nodes to reach their merge"


def test_a_node_that_the_master_dropped_is_told_that_and_not_that_the_master_is_away(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report(Config(node_rank=1))
    dropped = '{"event": "dropped", "text": "the master dropped this node: silent for 2 s"}'
    report.follow(Engine(dropped))  # type: ignore[arg-type]
    assert "fell out of the job: the master dropped this node: silent" in capsys.readouterr().err
    report.follow(Engine('{"event": "master_found"}'))  # type: ignore[arg-type]
    assert "is in the job again" in capsys.readouterr().err
    report.follow(Engine('{"event": "master_found"}'))  # type: ignore[arg-type]
    assert "the master is back" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (
            '{"event": "lost", "node": 1, "text": "silent for 10 s"}',
            "is gone (silent for 10 s): host",
        ),
        ('{"event": "left", "node": 1, "text": "finished"}', "is gone (finished): host"),
        ('{"event": "left", "node": 7, "text": "finished"}', "is gone: host"),
        ('{"event": "lost", "text": "of a master that is damaged"}', "is gone: host"),
    ],
)
def test_a_node_that_is_gone_is_told_with_the_reason(
    event: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report(Config(node_rank=0))
    report._tell_members(Engine(members=2).members())
    report.follow(Engine(event, members=1))  # type: ignore[arg-type]
    assert "node 1 " + says in capsys.readouterr().err


def test_a_node_that_went_during_a_merge_is_told_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report(Config(node_rank=0))
    report._tell_members(Engine(members=2).members())
    engine = Engine('{"event": "lost", "node": 1, "text": "silent for 10 s"}')
    result = {"round": 3, "exchange_us": 0, "apply_us": 0, "wait_us": 0, "sent_bytes": 0}
    result |= {"outcome": 0, "contributor_count": 1, "member_count": 1}
    view = {"members": engine.members(), "job_step": 1}
    report.merged(engine, result, view, steps=1, byte_count=4)  # type: ignore[arg-type]
    assert "node 1 is gone (silent for 10 s)" in capsys.readouterr().err


def test_a_node_that_gets_no_state_is_told_at_which_address_the_others_must_reach_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report(Config(node_rank=1, worker_url="tcp://1.2.3.4:5"))
    event = '{"event": "donor_lost", "text": "no chunk came within the deadline"}'
    report.follow(Engine(event))  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert "no chunk came" in said and "must reach this one at tcp://1.2.3.4:5" in said


@pytest.mark.parametrize(
    ("here", "says"),
    [(1, "--min_nodes asks for 2, 1 here"), (2, "other nodes to reach their merge")],
)
def test_a_wait_names_min_nodes_if_these_are_missing(
    here: int, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("solo.report.FIRST_WAIT_SECONDS", 0.0)
    report = Report(Config(min_nodes=2))
    report.waiting(Engine(members=here), "to merge")  # type: ignore[arg-type]
    assert f"waiting to merge, 0 s: {says}" in capsys.readouterr().err


def test_lines_are_json_objects_where_machines_read_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOLO_LOG_FORMAT", "json")
    monkeypatch.setenv("RANK", "0")
    report = Report(Config(node_rank=3))
    report.follow(Engine('{"event": "dropped", "text": "silent"}'))  # type: ignore[arg-type]
    line = json.loads(capsys.readouterr().err)
    assert (line["node"], line["rank"], line["event"], line["level"]) == (3, 0, "dropped", "info")
    assert "silent" in line["text"] and line["time"].endswith("Z")


def test_a_nan_is_told_once_a_round_however_many_parts_of_the_model_hold_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report(Config(node_rank=1))
    lines = [
        json.dumps({"event": "nonfinite", "node": 1, "round": at, "text": name})
        for at in (2, 3)
        for name in ("0.weight", "0.weight", "0.bias")
    ]
    report.follow(Engine(*lines))  # type: ignore[arg-type]
    assert capsys.readouterr().err.count("has a NaN or Inf in 0.weight") == 2


def test_a_node_that_comes_back_is_not_announced_to_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report(Config(node_rank=1))
    for members, now in ((2, 2.0), (1, 4.0), (2, 6.0)):  # without node 1 while it was dropped
        report._looked_at = -now
        report.follow(Engine(members=members))  # type: ignore[arg-type]
    assert "joined" not in capsys.readouterr().err


def test_nodes_on_the_same_data_are_told_once_in_words_that_name_both(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report(Config(node_rank=0))
    event = '{"event": "twins", "node": 0, "text": "nodes 0 and 2 train on the same data"}'
    report.follow(Engine(event, event))  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert said.count("nodes 0 and 2 train on the same data: half of the work") == 1
    assert "solo.data_rank()" in said


def test_a_lost_master_is_told_with_the_reason_and_that_training_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    event = '{"event": "master_lost", "text": "connection refused"}'
    Report(Config(node_rank=1)).follow(Engine(event))  # type: ignore[arg-type]
    told = capsys.readouterr().err
    assert "no connection to the master (connection refused); training goes on meanwhile" in told


@pytest.mark.parametrize(
    "error", [TypeError("Descriptors cannot be created directly"), ValueError("not UTF-8")]
)
def test_a_tensorboard_that_does_not_work_here_ends_no_training(
    error: Exception, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def __init__(self, folder: str) -> None:
            raise error

    module = types.SimpleNamespace(SummaryWriter=Broken)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    joined = {"founder": True, "version": 0, "slot": 0, "replaced": False}
    report = Report(Config(job_dir=tmp_path))
    report.joined(joined, [])  # type: ignore[arg-type]
    report.close()
