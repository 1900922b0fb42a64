"""What the benchmarks say of given rows: their arithmetic, and that each can be started."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from benchmarks import bench_quality, bench_recover, bench_sync, bench_train, report

ROOT = pathlib.Path(__file__).parent.parent.parent
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("bench_*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_each_benchmark_knows_quick_and_json(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, shown.stderr
    assert "--quick" in shown.stdout and "--json" in shown.stdout


def test_a_row_says_whether_its_ratio_is_within_the_bound() -> None:
    assert report.Row("a", 3, "ms", 1.15, "limit", "<= 1.15").verdict == "yes"
    assert report.Row("a", 3, "ms", 1.16, "limit", "<= 1.15").verdict == "no"
    assert report.Row("a", 3, "ms", 3.9, "peer", ">= 4").verdict == "no"
    assert report.Row("a", 3, "ms", float("nan"), "peer", ">= 4").verdict == "no"
    assert report.Row("a", 3, "ms").verdict == ""


def test_rows_are_one_json_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    report.Report("bench", as_json=True).add(report.Row("a", 3, "ms", 2, "peer", ">= 1"))
    row = json.loads(capsys.readouterr().out)
    assert (row["benchmark"], row["value"], row["ratio"], row["met"]) == ("bench", 3, 2, "yes")


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(v) for v in range(100, 0, -1)]
    assert report.percentile(values, 99) == 100
    assert report.percentile(values, 0) == 1
    assert report.percentile([5.0], 99) == 5


def sync_row(step: float, began: float, ended: float) -> dict[str, float]:
    return {"step": step, "at": ended, "seconds": ended - began}


def test_a_sync_lasts_from_the_last_to_come_to_the_last_to_go() -> None:
    first = [sync_row(20, 0.0, 5.0), sync_row(40, 10.0, 13.0), {"memcpy": 1.0}]
    second = [sync_row(20, 4.0, 4.5), sync_row(40, 11.0, 12.0), sync_row(60, 20.0, 21.0)]
    assert bench_sync.sync_seconds([first, second], skip=0) == [1.0, 2.0]
    assert bench_sync.sync_seconds([first, second], skip=1) == [2.0]


def test_a_prediction_is_the_bytes_that_each_member_must_move() -> None:
    bits = bench_train.PARAMETERS * 8.125
    assert bench_train.sync_seconds(2, "int8", 100) == pytest.approx(bits / 100e6)
    assert bench_train.sync_seconds(4, "int8", 100) == pytest.approx(1.5 * bits / 100e6)


def test_a_run_is_cut_into_steps_merges_and_waiting() -> None:
    rounds = [{"exchange": 0.5, "apply_before": 0.1, "waiting": 0.4}] * 3
    solo = bench_train.split(300 * 0.1 + 3.0, 300, rounds, 100)
    assert solo.bare == pytest.approx(0.1)
    assert (solo.merge, solo.waiting) == pytest.approx((0.6, 0.4))


def test_of_a_fault_the_gap_after_it_counts_and_missing_steps_are_lost() -> None:
    def rows(gap: float, moved: float) -> list[dict[str, float]]:
        return [
            {"at": 1.0, "step": 200, "seconds": 0.01, "longest_gap": 9.0},
            {"at": 3.0, "step": 300, "seconds": 0.02, "longest_gap": gap},
            {"moved": moved},
        ]

    events: list[dict[str, Any]] = [
        {"event": "joined", "node": 0},
        {"event": "joined", "node": 1, "version": 1},  # it saw the second round alone
        {"event": "committed", "version": 1, "attempt": 1, "steps": 100.0},
        {"event": "committed", "version": 2, "attempt": 2, "steps": 90.5},
        {"event": "left", "node": 1, "version": 2},
        {"event": "left", "node": 0, "version": 2},
    ]
    seen = bench_recover.outcome([rows(0.2, 190.5), rows(0.1, 80.5)], events, 2.0)
    assert (seen.gap, seen.usual, seen.attempts, seen.lost) == (0.2, 0.01, 2, 10)


def test_a_gap_long_after_a_fault_is_not_its_doing() -> None:
    rows = [
        {"at": 1.0, "step": 200, "seconds": 0.01, "longest_gap": 0.01},
        {"at": 3.0, "step": 300, "seconds": 0.02, "longest_gap": 0.02},
        {"at": 9.0, "step": 900, "seconds": 0.50, "longest_gap": 0.50},
        {"moved": 200.0},
    ]
    events: list[dict[str, Any]] = [
        {"event": "joined", "node": 0},
        {"event": "committed", "version": 1, "steps": 100.0, "time": 3.0},
        {"event": "committed", "version": 2, "steps": 100.0, "time": 4.0},
        {"event": "left", "node": 0, "version": 2},
    ]
    seen = bench_recover.outcome([rows], events, 2.0)
    assert (seen.gap, seen.gap_at) == (0.02, 1.0)


def test_time_to_a_loss_is_counted_from_the_first_row(tmp_path: pathlib.Path) -> None:
    metrics = tmp_path / "m.jsonl"
    rows = [{"time": 10, "loss": 3}, {"time": 14, "validation": 2.5}, {"time": 20, "final": 1}]
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert bench_quality.times(metrics) == [(4, 2.5)]


def test_every_arm_of_a_task_is_tried_at_the_same_learning_rates() -> None:
    for task in bench_quality.tasks(100, 3, 2):
        assert len(task.rates) == 2
        assert task.arms[0] is bench_quality.DDP and bench_quality.NO_SYNC in task.arms
