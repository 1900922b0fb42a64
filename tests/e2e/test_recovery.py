"""What a job keeps when something goes wrong: steps, heartbeats, the anchor that is held."""

from __future__ import annotations

import os
import pathlib
import resource
import signal

import pytest

from tests.e2e.jobs import Process, all_agree, running

SLOW = ["--rounds", "0", "--step-ms", "30"]
SANITIZED = "SOLO_TEST_FLAVOR" in os.environ


def memory_kib(name: str, path: str = "/proc/meminfo") -> int:
    rows = [line.split() for line in pathlib.Path(path).read_text().splitlines()]
    return next(int(row[1]) for row in rows if row[0] == f"{name}:")


def stop(*members: Process) -> None:
    for member in members:
        member.signal(signal.SIGTERM)
    for member in members:
        assert member.end() == 0, member.text()


@pytest.mark.parametrize(
    "phase", ["round 4 attempt 1 begins", "to master: DONE", "applying round 4", "applied round 4"]
)
def test_every_step_of_those_who_live_is_in_the_anchor_whenever_one_is_killed(
    tmp_path: pathlib.Path, phase: str
) -> None:
    with running(tmp_path) as job:
        job.master("--min-nodes", "2")
        size = ["--elements", "400000"]
        members = [job.member(rank, *SLOW, *size) for rank in range(2)]
        victim = job.member(2, *SLOW, *size, "--die-on", phase)
        assert victim.end() == -signal.SIGKILL
        for member in members:
            member.did(9)
        stop(*members)
        all_agree(members)
        for member in members:
            weight, rows = member.row("joined")["weight"], member.rounds()
            assert [row["version"] for row in rows] == list(range(1, len(rows) + 1))
            for row in rows:  # the mean of what the members of the round did, to the last bit
                done = sum(rank + 1 for rank in range(row["members"])) / 4 / row["members"]
                assert row["weight"] == weight + done, row
                weight = row["weight"]
        assert {row["members"] for row in members[0].rounds()[-3:]} == {2}


@pytest.mark.slow
@pytest.mark.skipif(SANITIZED, reason="a sanitizer is large")
def test_a_model_of_a_gibibyte_is_taken_fetched_and_given_within_a_short_lease(
    tmp_path: pathlib.Path,
) -> None:
    if memory_kib("MemAvailable") < 14 << 20:
        pytest.skip("less than 14 GiB of memory are free")
    with running(tmp_path) as job:
        lease, size = ["--lease-ms", "400"], ["--elements", str(1 << 28)]
        job.master(*lease, "--min-nodes", "1")
        first = job.member(0, "--rounds", "0", *lease, *size)
        first.until(lambda: [row for row in first.rows if row["event"] == "joined"], 60)
        second = job.member(1, "--rounds", "1", *lease, *size)
        assert second.end(120) == 0
        assert second.row("joined")["replaced"] == 1
        first.signal(signal.SIGTERM)
        assert first.end(60) == 0
        assert not job.events("lost")
        all_agree([first, second])


@pytest.mark.skipif(SANITIZED, reason="address space is theirs")
def test_a_member_needs_no_further_memory_to_come_back(tmp_path: pathlib.Path) -> None:
    with running(tmp_path) as job:
        lease, size = ["--lease-ms", "1000"], ["--elements", str(64 << 20)]
        options = [*lease, *size, "--state-dir", str(tmp_path / "state")]
        job.master(*lease, "--min-nodes", "3")
        members = [job.member(rank, *SLOW, *options) for rank in range(3)]
        for member in members:
            member.did(2)
        stopped = members[2]
        stopped.signal(signal.SIGSTOP)
        job.member(3, *SLOW, *options)  # three are needed to go on
        version = members[0].rounds()[-1]["version"]
        members[0].until(lambda: members[0].rounds()[-1]["version"] > version + 1, 60)
        limit = (memory_kib("VmSize", f"/proc/{stopped.pid}/status") << 10) + (64 << 20)
        resource.prlimit(stopped.pid, resource.RLIMIT_AS, (limit, limit))
        stopped.signal(signal.SIGCONT)
        stopped.until(lambda: [r for r in stopped.rounds() if r["outcome"] == "rejoined"], 60)
        for member in members:
            member.did(len(member.rounds()) + 2)
        stop(*members)
        all_agree(members)


def test_a_job_of_which_nothing_lives_goes_on_from_its_state_files(tmp_path: pathlib.Path) -> None:
    """Every member and the master die at once; the same command begins where the files end."""
    options = [*SLOW, "--state-dir", str(tmp_path / "state")]
    with running(tmp_path) as job:
        master = job.master("--min-nodes", "2")
        dead = [job.member(rank, *options) for rank in range(2)]
        for member in dead:
            member.did(5)
        for process in (master, *dead):
            process.signal(signal.SIGKILL)
        for process in (master, *dead):
            process.end()
        seen = max(row["version"] for member in dead for row in member.rounds())
        start = dead[0].row("joined")["weight"]
        job.master("--min-nodes", "2")
        members = [job.member(rank, *options) for rank in range(2)]
        for member in members:
            member.did(3)
        stop(*members)
        all_agree([*dead, *members])
        version = members[0].row("joined")["version"]
        assert 0 < version <= seen + 1  # a file may be of a merge that nobody could report
        for member in members:
            assert member.row("joined")["version"] == version
            for row in member.rounds():
                expected = start + 0.375 * row["version"]  # as if nothing had happened
                assert row["version"] > version and row["weight"] == expected
