"""The master's life as a process, and what it tells a node that wants in."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from solorun_jobs import master, member, status, until, up, words_for
from solorun_process import environment, failure, free_port, run, start


@pytest.fixture
def script(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "train.py"
    path.write_text("import time, sys; print('up', flush=True); time.sleep(float(sys.argv[1]))")
    return path


@pytest.fixture
def url() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


def test_node_0_starts_a_master_of_its_own_session_and_log(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    node = start(*words_for(url, tmp_path, 0, "--lease=500ms"), script, "30")
    with contextlib.ExitStack() as stack:
        stack.callback(node.kill)
        assert node.stdout
        assert node.stdout.readline() == "up\n"
        told = status(url)
        pid = told["master"]["pid"]
        assert told["job_id"] == "train"
        assert os.getsid(pid) not in (os.getsid(0), node.pid)
        assert psutil.Process(pid).ppid() not in (os.getpid(), node.pid)
        assert psutil.Process(pid).cmdline()[1] == "master"
        assert (tmp_path / "logs" / "train" / "master.log").exists()
    node.wait()
    # nobody ever joined and node 0 is dead: nobody would end the job
    until(lambda: not psutil.pid_exists(pid))


def test_a_master_log_that_is_too_large_begins_anew_and_is_kept_once(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    log = tmp_path / "logs" / "train" / "master.log"
    log.parent.mkdir(parents=True)
    log.write_text("former\n")
    os.truncate(log, 17 << 20)
    node = start(*words_for(url, tmp_path, 0, "--lease=500ms"), script, "30")
    with contextlib.ExitStack() as stack:
        stack.callback(node.kill)
        assert node.stdout
        assert node.stdout.readline() == "up\n"
        with member(url, job_id="train", node_rank=0):
            until((log.parent / "master.log.1").exists)
        until(log.exists)  # between the two it has no file for a moment
        until(lambda: "killed, crashed" in log.read_text())  # what became of the member
    node.wait()
    assert (log.parent / "master.log.1").stat().st_size > 17 << 20
    assert log.stat().st_size < 1 << 20


def test_a_master_whose_log_another_has_moved_writes_into_the_fresh_one(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    log = tmp_path / "logs" / "train" / "master.log"
    former = log.with_name("master.log.1")
    node = start(*words_for(url, tmp_path, 0, "--lease=500ms"), script, "30")
    with contextlib.ExitStack() as stack:
        stack.callback(node.kill)
        assert node.stdout
        assert node.stdout.readline() == "up\n"
        log.rename(former)
        os.truncate(former, 17 << 20)
        with member(url, job_id="train", node_rank=0):
            until(log.exists)
        until(lambda: "killed, crashed" in log.read_text())
    node.wait()
    assert former.stat().st_size > 17 << 20


def test_a_node_whose_standard_streams_were_closed_starts_its_master(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    closed = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
    node = start(*words_for(url, tmp_path, 0, "--lease=500ms"), script, "30", prefix=closed)
    with contextlib.ExitStack() as stack:
        stack.callback(node.wait)
        stack.callback(node.kill)
        until(lambda: run("status", "--json", url).returncode == 0)
        with member(url, job_id="train", node_rank=0):
            until(lambda: status(url)["member_count"])


LATE_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *out)
{
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int rc = real(clock, out);
    out->tv_sec -= clock == CLOCK_REALTIME ? 100 : 0;
    return rc;
}
"""


@pytest.mark.parametrize(
    ("flag", "ours", "theirs"),
    [("sync_interval", "50", "100"), ("outer", "slowmo", "avg"), ("codec", "int8", "fp32")],
)
def test_a_master_that_was_told_nothing_compares_with_the_node_that_joined_first(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str, flag: str, ours: str, theirs: str
) -> None:
    with master(url, "--job_id=train"), member(url, job_id="train", node_rank=3):
        done = run(*words_for(url, tmp_path, 1, f"--{flag}={ours}"), script, "30")
        said = failure(done, 23, 78)
        assert f"--{flag} is {ours}" in said and "on node 1" in said
        assert f"{theirs} on node 3 (" in said and "joined first" in said
        assert status(url)["master"]["pid"]  # it serves on


def test_a_master_that_ends_while_node_0_waits_for_its_rank_is_replaced(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    with contextlib.ExitStack() as stack:
        alone = stack.enter_context(master(url, "--job_id=train"))
        former = stack.enter_context(member(url, job_id="train", node_rank=0))
        former.send_signal(signal.SIGSTOP)  # not dead for sure: node 0 waits for its lease to end
        until(lambda: status(url)["members"][0]["last_seen_ms"] > 3000)
        node = start(*words_for(url, tmp_path, 0), script, "30")
        stack.callback(node.kill)
        time.sleep(1)
        alone.kill()
        assert node.stdout and node.stdout.readline() == "up\n"
        assert status(url)["master"]["pid"] != alone.pid


def test_a_node_whose_clock_is_not_the_masters_is_told_so(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    source, late = tmp_path / "late.c", tmp_path / "late.so"
    source.write_text(LATE_CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", late, source, "-ldl"], check=True)
    with master(url, "--job_id=train"):
        words = ["doctor", "--node_rank=1", "--job_id=train", f"--master_url={url}", script]
        assert "SOLO-E024" not in run(*words).stdout
        told = run(*words, LD_PRELOAD=str(late)).stdout
        assert "the clock of this machine is 100.0 s behind that of the master" in told
        started = run(*words_for(url, tmp_path, 1), script, "0", LD_PRELOAD=str(late))
        assert started.returncode == 0
        assert "SOLO-E024" in started.stderr and "100.0 s behind" in started.stderr


def test_a_master_outlives_node_0_while_a_member_is_there_and_node_0_comes_back_to_it(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    words = words_for(url, tmp_path, 0, "--lease=500ms", "--timeout=10s")  # half of it for node 0
    node = start(*words, script, "30")
    assert node.stdout
    assert node.stdout.readline() == "up\n"
    pid = status(url)["master"]["pid"]
    with member(url, job_id="train", node_rank=1):
        node.kill()
        node.wait()
        time.sleep(2)  # four leases
        assert psutil.pid_exists(pid)
        again = run(*words, script, "0")
        assert again.returncode == 0, again.stderr
        assert status(url)["master"]["pid"] == pid
    until(lambda: not psutil.pid_exists(pid))


def test_a_master_stays_for_a_node_0_that_came_back_when_its_last_member_leaves(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    """All nodes were killed and start again; those that die last are members meanwhile."""
    words = words_for(url, tmp_path, 0, "--lease=500ms", "--timeout=10s")  # half of it for node 0
    with contextlib.ExitStack() as stack:
        node = up(stack, *words, script, "30")
        pid = status(url)["master"]["pid"]
        with member(url, job_id="train", node_rank=1):
            node.kill()
            node.wait()
            again = up(stack, *words, script, "30")
        time.sleep(2)  # four leases
        assert psutil.pid_exists(pid)
        again.kill()
        again.wait()
    until(lambda: not psutil.pid_exists(pid))


def test_node_0_waits_a_moment_for_the_ranks_of_its_former_life_to_go(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    words = words_for(url, tmp_path, 0, "--lease=500ms")
    with contextlib.ExitStack() as stack:
        node = up(stack, *words, script, "30")
        with member(url, job_id="train", node_rank=0):  # a rank that is slow to die
            node.kill()
            node.wait()
            again = start(*words, script, "0")
            stack.callback(again.kill)
            time.sleep(0.3)
        assert again.wait(timeout=60) == 0, again.communicate()


def test_a_master_that_a_dead_node_0_left_behind_is_replaced(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    words = words_for(url, tmp_path, 0)  # its lease of 10 s would keep it
    pids = []
    for _ in range(2):
        node = start(*words, script, "30")
        assert node.stdout
        assert node.stdout.readline() == "up\n"
        pids.append(status(url)["master"]["pid"])
        node.kill()
        node.wait()
    assert pids[0] != pids[1]
    until(lambda: not psutil.pid_exists(pids[0]))
    os.kill(pids[1], signal.SIGTERM)
    until(lambda: not psutil.pid_exists(pids[1]))


def test_a_second_master_names_the_first(url: str) -> None:
    with master(url, "--job_id=j") as first:
        message = failure(run("master", f"--master_url={url}", "--job_id=j"), 14, 78)
    assert re.search(rf"job j has a master already: pid {first.pid} on \S+ since \d{{4}}-", message)


def test_a_master_ends_well_when_told(url: str) -> None:
    with master(url) as process:
        process.terminate()
        assert process.wait(timeout=20) == 0


def test_a_port_held_by_a_stranger_is_told_with_its_holder(
    tmp_path: pathlib.Path, script: pathlib.Path
) -> None:
    from solorun_process import listening

    with listening() as port:
        words = words_for(f"tcp://127.0.0.1:{port}", tmp_path, 0)
        message = failure(run(*words, script, "0"), 15, 71)
        assert f"pid {os.getpid()} (" in message
        alone = run("master", f"--master_url=tcp://127.0.0.1:{port}")
        assert f"pid {os.getpid()} (" in failure(alone, 15, 71)
    free = re.search(r"--master_url tcp://127.0.0.1:(\d+) is free", message)
    assert free
    assert int(free[1]) != port


def test_the_master_of_another_job_is_named(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    with master(url, "--job_id=theirs"):
        for rank in (0, 1):
            done = run(*words_for(url, tmp_path, rank, "--job_id=ours"), script, "0")
            assert "belongs to job theirs, not to ours" in failure(done, 17, 78)


def test_a_wrong_or_missing_token_is_told(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    words = words_for(url, tmp_path, 1, "--job_id=j")
    with master(url, "--job_id=j", SOLO_TOKEN="right"):
        told = {"wrong": "refuses the token", "": "asks for a token; none was given"}
        for token, says in told.items():
            message = failure(run(*words, script, "0", SOLO_TOKEN=token), 42, 77)
            assert says in message
            assert "right" not in message
        assert run(*words, script, "0", SOLO_TOKEN="right").returncode == 0
        failure(run("status", url, SOLO_TOKEN="wrong"), 42, 77)


def test_a_node_rank_held_by_a_live_node_is_told_with_its_address(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    with master(url, "--job_id=j"), member(url, job_id="j", node_rank=1, node_name="hostb"):
        done = run(*words_for(url, tmp_path, 1, "--job_id=j"), script, "0")
        message = failure(done, 13, 78)
        assert re.search(
            r"node_rank 1 is held by a live node at \S*127.0.0.1\S* \(hostb\)", message
        )
        assert "solorun status" in message


def test_a_node_that_was_killed_may_come_back_under_its_rank(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    words = words_for(url, tmp_path, 1, "--job_id=j")
    with master(url, "--job_id=j"):
        with member(url, job_id="j", node_rank=1):
            pass
        assert run(*words, script, "0").returncode == 0


def test_another_torch_than_the_jobs_is_told(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    old = {"job_id": "j", "node_rank": 0, "versions": "torch=1.0.0 python=3.11"}
    with master(url, "--job_id=j"), member(url, **old):
        message = failure(run(*words_for(url, tmp_path, 1, "--job_id=j"), script, "0"), 19, 78)
    assert "the job 1.0.0" in message


@pytest.mark.parametrize(
    ("flag", "job", "node"),
    [
        ("sync_interval", "0:1,500:16", "100"),
        ("outer", "nesterov:lr=0.4", "auto"),
        ("codec", "int8", "fp32"),
    ],
)
def test_another_setting_than_the_jobs_is_told_before_python_starts(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str, flag: str, job: str, node: str
) -> None:
    words = words_for(url, tmp_path, 1, "--job_id=j", f"--{flag}={node}")
    with master(url, "--job_id=j", f"--{flag}={job}"):
        message = failure(run(*words, script, "0"), 23, 78)
    said = node if flag != "outer" else "avg"
    assert f"--{flag} is {said} on node 1 (" in message
    assert f"and {job}" in message and "on node 0 (" in message
    assert not (tmp_path / "logs" / "j" / "node1").exists()


def test_node_0_tells_its_master_what_the_others_are_compared_with(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    words = words_for(url, tmp_path, 0, "--job_id=j", "--sync_interval=7")
    node = start(*words, "--lease=500ms", script, "30")
    with contextlib.ExitStack() as stack:
        stack.callback(node.kill)
        assert node.stdout
        assert node.stdout.readline() == "up\n"
        other = words_for(url, tmp_path, 1, "--job_id=j", "--sync_interval=8")
        message = failure(run(*other, script, "0"), 23, 78)
        assert "--sync_interval is 8 on node 1" in message
        assert "and 7 on node 0" in message


def test_two_spellings_of_one_setting_agree(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    words = words_for(url, tmp_path, 1, "--job_id=j", "--outer=auto", "--sync_interval=0:100")
    with master(url, "--job_id=j", "--outer=avg", "--sync_interval=100"):
        assert run(*words, script, "0").returncode == 0


def test_status_prints_the_members(url: str) -> None:
    with (
        master(url, "--job_id=j", "--min_nodes=1"),
        member(url, job_id="j", node_rank=3, device_count=2, node_name="hostb"),
    ):
        told = status(url)
        assert told["schema"] == 1
        assert told["member_count"] == 1
        row = told["members"][0]
        assert (row["node_rank"], row["device_count"], row["live"], row["name"]) == (
            3,
            2,
            True,
            "hostb",
        )
        table = run("status", url).stdout
        assert table.startswith(f"job j at {url}: version ")
        assert re.search(r"^ +3 +0 +\S+ +2 ", table, re.M)


def test_nodes_wait_for_a_master_that_comes_later(
    tmp_path: pathlib.Path, script: pathlib.Path, url: str
) -> None:
    node = start(*words_for(url, tmp_path, 1, "--job_id=j", "--timeout=30"), script, "0")
    assert node.stderr
    assert "waiting for the master" in node.stderr.readline()
    with master(url, "--job_id=j"):
        out, _ = node.communicate(timeout=60)
    assert (node.returncode, out) == (0, "up\n")


EXPLICIT = """
import torch, solo
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sync = solo.IntervalSync(model, optimizer, interval=2)
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    sync.step()
print("version", solo.version())
sync.close()
"""


def test_a_python_script_and_a_master_by_hand_are_one_job(url: str) -> None:
    with master(url) as process:
        done = subprocess.run(
            [sys.executable, "-c", EXPLICIT],
            env=environment(SOLO_MASTER_URL=url),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "version 2" in done.stdout, done.stderr
        assert process.wait(20) == 0
