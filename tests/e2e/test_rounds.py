"""Members of one job as real processes: merges, deaths, joins, strangers at the door.

The model of member.c moves by (rank + 1) / 4 each interval, so means are exact in fp32.
"""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import time

import pytest

from tests.e2e.jobs import Process, all_agree, running

MANY = ["--rounds", "0"]
SLOW = ["--rounds", "0", "--step-ms", "30"]
PHASES = ["begins", "to master: DONE", "applying round", "applied round", "to master: READY"]


def ends_well(*members: Process) -> None:
    for member in members:
        assert member.end() == 0, member.text()


def stop(*members: Process) -> None:
    for member in members:
        member.signal(signal.SIGTERM)
    ends_well(*members)


@pytest.mark.parametrize("path", ["shm", "tcp"])
@pytest.mark.parametrize("count", [2, 4])
def test_members_merge_to_the_exact_mean(tmp_path: pathlib.Path, count: int, path: str) -> None:
    with running(tmp_path) as job:
        master = job.master("--min-nodes", str(count))
        options = ["--buffers", "--rounds", "5", *(["--tcp"] if path == "tcp" else [])]
        members = [job.member(rank, *options) for rank in range(count)]
        ends_well(*members)
        ends_well(master)
        start = members[0].row("joined")["weight"]
        step = (count + 1) / 2 / 4
        for member in members:
            rows = member.rounds()
            assert [row["version"] for row in rows] == [1, 2, 3, 4, 5]
            assert [row["weight"] for row in rows] == [start + step * v for v in range(1, 6)]
            assert [row["bias"] for row in rows] == [2 * step * v for v in range(1, 6)]
            assert [row["mean"] for row in rows] == [(count - 1) / 2] * 5
            assert [row["max"] for row in rows] == [count * v for v in range(1, 6)]
            assert {row["members"] for row in rows} == {count}
        all_agree(members)


def test_a_lone_node_trains_on_and_is_told_that_it_is_alone(tmp_path: pathlib.Path) -> None:
    with running(tmp_path) as job:
        master = job.master()
        member = job.member(0, "--rounds", "3")
        ends_well(member, master)
        assert [row["outcome"] for row in member.rounds()] == ["alone"] * 3
        assert member.rounds()[-1]["weight"] == 1 + 3 / 4


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8"])
def test_replicas_are_bit_identical_on_mixed_instruction_sets(
    tmp_path: pathlib.Path, codec: str
) -> None:
    with running(tmp_path) as job:
        job.master("--min-nodes", "3")
        options = ["--codec", codec, "--outer", "nesterov:lr=0.7", "--buffers", "--half"]
        options += ["--elements", "100003", "--rounds", "4"]
        members = [
            job.member(rank, *options, SOLO_ISA=isa)
            for rank, isa in enumerate(["scalar", "avx2", ""])
        ]
        ends_well(*members)
        assert all(len(member.rounds()) == 4 for member in members)
        all_agree(members)


def test_a_member_killed_between_rounds_costs_the_others_nothing(tmp_path: pathlib.Path) -> None:
    with running(tmp_path) as job:
        job.master("--min-nodes", "1")
        members = [job.member(rank, *SLOW) for rank in range(3)]
        for member in members:
            member.together(3)
        members[2].kill()
        seen = members[0].together(2)
        members[0].reach(seen["version"] + 3)
        stop(members[0], members[1])
        all_agree(members)
        versions = [row["version"] for row in members[0].rounds()]
        assert versions == list(range(versions[0], versions[0] + len(versions)))
        assert [event["node"] for event in job.events("lost")] == [2]


@pytest.mark.parametrize("phase", PHASES)
def test_a_member_killed_in_any_phase_of_a_round_loses_the_others_no_step(
    tmp_path: pathlib.Path, phase: str
) -> None:
    with running(tmp_path) as job:
        job.master("--min-nodes", "3")
        size = ["--elements", "400000"]
        members = [job.member(rank, *SLOW, *size) for rank in range(2)]
        victim = job.member(2, *SLOW, *size, "--die-on", phase)
        assert victim.end() == -signal.SIGKILL
        job.member(3, *SLOW, *size)  # three are needed to go on
        for member in members:
            member.did(4)
        stop(*members)
        all_agree(members)
        for member in members:
            versions = [row["version"] for row in member.rounds()]
            assert versions == list(range(1, len(versions) + 1)), "a round was lost or skipped"


def test_a_goodbye_costs_the_others_nothing(tmp_path: pathlib.Path) -> None:
    with running(tmp_path) as job:
        job.master()
        members = [job.member(rank, *SLOW) for rank in range(3)]
        for member in members:
            member.together(3)
        stop(members[1])
        seen = members[0].together(2)
        members[0].reach(seen["version"] + 2)
        stop(members[0], members[2])
        all_agree(members)
        assert not job.events("lost")
        left = [event for event in job.events("left") if event["node"] == 1]
        assert left and left[0]["text"] == "terminated"


def test_a_late_joiner_takes_the_jobs_anchor(tmp_path: pathlib.Path) -> None:
    with running(tmp_path) as job:
        job.master()
        size = ["--elements", "700000", "--outer", "nesterov"]
        first = job.member(0, *SLOW, *size)
        first.reach(3)
        joiner = job.member(1, *SLOW, *size)
        joined = joiner.row("joined")
        assert joined["version"] >= 3 and joined["replaced"] == 1 and joined["founder"] == 0
        joiner.did(3)
        assert all(row["members"] == 2 for row in joiner.rounds()[:3])
        stop(joiner)
        stop(first)
        all_agree([first, joiner])


def test_a_stopped_member_releases_the_others_after_its_lease_and_comes_back(
    tmp_path: pathlib.Path,
) -> None:
    with running(tmp_path) as job:
        lease = ["--lease-ms", "1000"]
        job.master(*lease)
        members = [job.member(rank, *SLOW, *lease) for rank in range(3)]
        for member in members:
            member.together(3)
        members[2].signal(signal.SIGSTOP)
        seen = members[0].together(2)
        members[0].reach(seen["version"] + 2)
        members[2].signal(signal.SIGCONT)
        members[2].until(
            lambda: [r for r in members[2].rounds() if r["version"] > seen["version"] + 2]
        )
        assert any(row["outcome"] == "rejoined" for row in members[2].rounds())
        stop(*members)
        all_agree(members)


@pytest.mark.parametrize("phase", ["between rounds", *PHASES])
def test_a_master_may_be_killed_and_started_again(tmp_path: pathlib.Path, phase: str) -> None:
    with running(tmp_path) as job:
        master = job.master("--min-nodes", "2")
        members = [job.member(rank, *SLOW) for rank in range(2)]
        for member in members:
            member.reach(3)
        if phase != "between rounds":
            count = len(members[0].log)
            members[0].until(lambda: any(phase in line for line in members[0].log[count:]))
        master.kill()
        version = max(len(member.rounds()) for member in members)
        job.master("--min-nodes", "2")
        for member in members:
            member.reach(version + 4)
        stop(*members)
        all_agree(members)
        for member in members:
            versions = [row["version"] for row in member.rounds()]
            assert versions == list(range(1, len(versions) + 1))


def test_without_a_master_a_merge_ends_in_a_typed_error_within_its_deadline(
    tmp_path: pathlib.Path,
) -> None:
    with running(tmp_path) as job:
        master = job.master()
        member = job.member(0, *SLOW, "--timeout-ms", "5000")
        member.reach(2)
        master.kill()
        assert member.end() == 1
        error = member.row("error")
        assert error["code"] == "SOLO_ETIMEDOUT" and "master" in error["text"]


def test_a_node_with_a_nan_is_left_out_and_named(tmp_path: pathlib.Path) -> None:
    with running(tmp_path) as job:
        job.master("--min-nodes", "3")
        members = [
            job.member(rank, "--rounds", "5", "--nan-round", str(3 * (rank == 1)))
            for rank in range(3)
        ]
        ends_well(*members)
        all_agree(members)
        for member in members:
            assert member.rounds()[2]["contributors"] == 2
            assert member.rounds()[4]["contributors"] == 3
            assert member.rounds()[4]["weight"] == member.rounds()[4]["weight"]
        event = job.events("nonfinite")[0]
        assert event["node"] == 1 and "weight" in event["text"]


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def test_strangers_at_the_door_do_not_disturb_the_training(tmp_path: pathlib.Path) -> None:
    with running(tmp_path) as job:
        token = ["--token", "a secret of this test"]
        job.master(*token)
        members = [job.member(rank, *SLOW, *token) for rank in range(2)]
        for member in members:
            member.together(2)
        silent = [connect(job.port) for _ in range(80)]
        for noise in (b"\0" * 64, os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n", b""):
            with connect(job.port) as stranger:
                stranger.sendall(noise)
        wrong = job.member(5, "--token", "another", "--timeout-ms", "3000")
        without = job.member(6, "--timeout-ms", "3000")
        assert wrong.end() == 1 and wrong.row("error")["code"] == "SOLO_EAUTH"
        assert without.end() == 1 and without.row("error")["code"] == "SOLO_EAUTH"
        version = members[0].rounds()[-1]["version"]
        members[0].reach(version + 3)
        for connection in silent:
            connection.close()
        assert all(row["attempts"] == 1 for row in members[0].rounds())
        stop(*members)
        all_agree(members)


def test_two_jobs_on_one_host_do_not_meet(tmp_path: pathlib.Path) -> None:
    with running(tmp_path, job="one") as job:
        job.master()
        first = job.member(0, *SLOW)
        first.reach(1)
        stranger = job.member(1, "--job", "two", "--timeout-ms", "2000")
        assert stranger.end() == 1
        assert stranger.row("error")["code"] in ("SOLO_EREFUSED", "SOLO_ETIMEDOUT")
        assert "one" not in [row.get("outcome") for row in first.rounds()]
        assert {row["members"] for row in first.rounds()} == {1}
        stop(first)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--elements", ("1000", "1001")),
        ("--interval", ("100", "50")),
        ("--codec", ("fp32", "int8")),
        ("--outer", ("avg", "nesterov")),
        ("--versions", ("torch=2.13.0", "torch=2.14.1")),
    ],
)
def test_what_differs_between_nodes_is_refused_with_both_values(
    tmp_path: pathlib.Path, option: str, values: tuple[str, str]
) -> None:
    with running(tmp_path) as job:
        job.master()
        first = job.member(0, *SLOW, option, values[0])
        first.reach(1)
        other = job.member(1, option, values[1])
        assert other.end() == 1
        error = other.row("error")
        assert error["code"] in ("SOLO_EMISMATCH", "SOLO_EVERSION"), error
        for value in values:
            assert value in error["text"], error
        first.reach(first.rounds()[-1]["version"] + 1)
        stop(first)


def test_a_node_rank_that_is_held_is_refused_with_its_holders_address(
    tmp_path: pathlib.Path,
) -> None:
    with running(tmp_path) as job:
        job.master()
        first = job.member(0, *SLOW, "--name", "the-first")
        first.reach(1)
        second = job.member(0, "--timeout-ms", "5000")
        assert second.end() == 1
        error = second.row("error")
        assert error["code"] == "SOLO_EREFUSED" and "127.0.0.1" in error["text"]
        stop(first)


def test_a_second_master_names_the_first(tmp_path: pathlib.Path) -> None:
    with running(tmp_path) as job:
        first = job.master()
        second = job.start("second", ["--master"])
        assert second.end() == 1
        assert str(first.pid) in second.row("error")["text"]


def test_fewer_than_min_nodes_wait_and_say_so(tmp_path: pathlib.Path) -> None:
    with running(tmp_path) as job:
        job.master("--min-nodes", "2")
        first = job.member(0, *SLOW)
        first.until(lambda: any("from master: ADMIT" in line for line in first.log))
        assert not first.rounds()
        second = job.member(1, *SLOW)
        first.reach(2)
        stop(second)
        version = second.rounds()[-1]["version"]
        first.until(lambda: any("waiting for" in line for line in first.log))
        assert first.rounds()[-1]["version"] == version
        assert "min_nodes" in job.events("waiting")[-1]["text"]
        job.member(2, *SLOW)
        first.reach(version + 2)


def test_a_job_that_lost_all_its_nodes_goes_on_from_its_state(tmp_path: pathlib.Path) -> None:
    with running(tmp_path) as job:
        options = ["--state-dir", str(tmp_path / "state"), "--outer", "nesterov"]
        master = job.master("--min-nodes", "2")
        members = [job.member(rank, *SLOW, *options) for rank in range(2)]
        for member in members:
            member.reach(5)
        time.sleep(0.2)
        for process in (*members, master):
            process.kill()
        last = max(row["version"] for member in members for row in member.rounds())
        digests = {row["version"]: row["digest"] for m in members for row in m.rounds()}
        job.master("--min-nodes", "2")
        again = [job.member(rank, "--rounds", "3", *options) for rank in range(2)]
        ends_well(*again)
        version = again[0].row("joined")["version"]
        assert 1 <= version <= last + 1 and version in {*digests, last + 1}
        assert [row["version"] for row in again[0].rounds()] == [version + i for i in (1, 2, 3)]
        all_agree(again)


def test_ipv6_addresses_work(tmp_path: pathlib.Path) -> None:
    with running(tmp_path, host="::1") as job:
        job.master("--min-nodes", "2")
        members = [job.member(rank, "--rounds", "3", "--tcp") for rank in range(2)]
        ends_well(*members)
        all_agree(members)


def test_models_of_nothing_and_of_one_element_merge(tmp_path: pathlib.Path) -> None:
    for elements in ("0", "1"):
        with running(tmp_path / elements) as job:
            (tmp_path / elements).mkdir()
            job.master("--min-nodes", "2")
            size = ["--elements", elements, "--rounds", "3"]
            members = [job.member(rank, *size) for rank in range(2)]
            ends_well(*members)
            assert [row["version"] for row in members[0].rounds()] == [1, 2, 3]
            all_agree(members)


def count_of(pid: int, folder: str) -> int:
    return sum(1 for _ in pathlib.Path(f"/proc/{pid}/{folder}").iterdir())


def test_twenty_joins_goodbyes_and_kills_leave_equal_digests_and_nothing_leaked(
    tmp_path: pathlib.Path,
) -> None:
    with running(tmp_path) as job:
        master = job.master()
        step = ["--rounds", "0", "--step-ms", "10"]
        stayer = job.member(0, *step)
        stayer.reach(2)
        pair = job.member(1, *step)
        pair.did(2)
        before = {
            p.pid: (count_of(p.pid, "fd"), count_of(p.pid, "task")) for p in (stayer, pair, master)
        }
        guests = []
        for cycle in range(20):
            guest = job.member(2 + cycle % 3, *step)
            guests.append(guest)
            guest.did(2)
            if cycle % 2:
                guest.kill()
            else:
                stop(guest)
        version = stayer.rounds()[-1]["version"]
        stayer.reach(version + 3)
        stayer.until(lambda: stayer.rounds()[-1]["members"] == 2)
        after = {
            p.pid: (count_of(p.pid, "fd"), count_of(p.pid, "task")) for p in (stayer, pair, master)
        }
        assert after == before
        stop(pair)
        stop(stayer)
        all_agree([stayer, pair, *guests])


@pytest.mark.skipif("SOLO_TEST_FLAVOR" in os.environ, reason="a sanitizer is large")
def test_the_master_is_small(tmp_path: pathlib.Path) -> None:
    with running(tmp_path) as job:
        master = job.master("--min-nodes", "4")
        members = [job.member(rank, *SLOW) for rank in range(4)]
        for member in members:
            member.reach(3)
        status = pathlib.Path(f"/proc/{master.pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        assert int(resident.split()[1]) < 10 * 1024
        stop(*members)
