"""What comes out at the end of a run: exit codes, short messages, logs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
from solorun_process import run, start
from solorun_script import finish, gone, make

from solo import run_logs

# ---- exit codes ---------------------------------------------------------------------------------


def test_a_script_that_ends_well_ends_well_without_a_word(tmp_path: pathlib.Path) -> None:
    done = make(tmp_path, "print('hello', sys.argv[1:])").run()
    assert done.returncode == 0
    assert done.stdout == "hello []\n"  # no prefix: stdout is the script's
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ("sys.exit(3)", 3, "exit status 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "died of signal 11 (SIGSEGV)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "out of memory"),
        ("def f():\n    raise ValueError('boom\\nand more')\nf()", 1, "ValueError: boom"),
        ("import nothing_of_this_name", 1, "ModuleNotFoundError: No module named"),
        ("sys.exit('in words')", 1, "exit status 1"),
    ],
)
def test_the_exit_status_is_the_scripts_own(
    tmp_path: pathlib.Path, body: str, status: int, says: str
) -> None:
    done = make(tmp_path, body).run()
    assert done.returncode == status
    block = done.stderr[done.stderr.index("solorun: error SOLO-E080:") :].splitlines()
    assert 2 <= len(block) <= 7  # and nothing after it
    assert block[0].startswith("solorun: error SOLO-E080: node 0 rank 0 on ")
    assert says in block[0]
    assert any(line.startswith("  log: ") for line in block)
    assert block[-1].startswith("  next: ")
    assert "ChildFailedError" not in done.stderr


def test_the_place_of_an_exception_is_told(tmp_path: pathlib.Path) -> None:
    done = make(tmp_path, "def f():\n    raise ValueError('boom')\nf()").run()
    assert f'why: File "{tmp_path}/train.py", line' in done.stderr
    assert ", in f" in done.stderr


def test_the_rank_that_failed_is_told_with_its_log(tmp_path: pathlib.Path) -> None:
    job = make(
        tmp_path, "if rank == 1: print('last words', file=sys.stderr); sys.exit(5)\ntime.sleep(60)"
    )
    done = job.run("--device_count=2", "--shutdown-timeout=2")
    assert done.returncode == 5
    assert "node 0 rank 1 on " in done.stderr
    assert "node0/rank1.err.log" in done.stderr
    assert job.log("node0/rank1.err.log") == "last words\n"


def test_an_exception_under_torchs_own_record_is_told_too(tmp_path: pathlib.Path) -> None:
    done = make(
        tmp_path,
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main(): raise KeyError('mine')\nmain()",
    ).run()
    assert done.returncode == 1
    assert "KeyError: 'mine'" in done.stderr.split("SOLO-E080")[1]


def test_a_rank_whose_error_file_was_cut_short_by_a_full_disk_is_no_usage_error(
    tmp_path: pathlib.Path,
) -> None:
    done = make(
        tmp_path, "open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').close()\nsys.exit(3)"
    ).run()
    assert done.returncode == 1
    assert "error SOLO-E080: node 0: a rank failed" in done.stderr
    assert "rank0.err.log" in done.stderr


# ---- output and logs ------------------------------------------------------------------------


def test_each_rank_has_its_files_and_rank_0_the_console(tmp_path: pathlib.Path) -> None:
    job = make(
        tmp_path,
        "print(f'out {rank}')\nprint(f'err {rank}', file=sys.stderr)\n"
        "sys.stdout.write('bar 1\\rbar 2')\n",
    )
    done = job.run("--device_count=2")
    assert done.returncode == 0
    assert done.stdout == "out 0\nbar 1\nbar 2"  # text mode reads \\r as a line's end
    assert done.stderr == "err 0\n"
    for rank in range(2):
        assert job.log(f"node0/rank{rank}.out.log").startswith(f"out {rank}\n")
        assert job.log(f"node0/rank{rank}.err.log") == f"err {rank}\n"


def test_a_package_without_this_versions_entry_points_is_told_as_that(
    tmp_path: pathlib.Path,
) -> None:
    stale = tmp_path / "stale" / "solo_train-0.0.1.dist-info"
    stale.mkdir(parents=True)
    (stale / "METADATA").write_text("Metadata-Version: 2.1\nName: solo-train\nVersion: 0.0.1\n")
    job = make(tmp_path, "print('x')")
    done = run(*job.words, job.script, MARKS=str(job.marks), PYTHONPATH=str(stale.parent))
    assert done.returncode == 78
    assert "SOLO-E062: solo is not installed as a whole" in done.stderr
    assert "pip install" in done.stderr


def test_an_earlier_log_is_kept_once(tmp_path: pathlib.Path) -> None:
    job = make(tmp_path, "print(sys.argv[1])")
    for word in ("first", "second"):
        assert run(*job.words, job.script, word).returncode == 0
    assert job.log("node0/rank0.out.log") == "second\n"
    assert job.log("node0/rank0.out.log.1") == "first\n"


def test_a_log_that_grows_too_large_begins_anew_and_the_console_misses_nothing(
    tmp_path: pathlib.Path,
) -> None:
    body = (
        "def logs():\n"
        "    folder = os.path.dirname(os.readlink('/proc/self/fd/1'))\n"
        "    here = os.path.join(folder, 'rank0.out.log')\n"
        "    return os.path.exists(here + '.1') and os.path.getsize(here) < 5000\n"
        "os.environ['SOLO_LOG_SIZE'] = '5000'\n"
        "from solo import log_size\n"
        "log_size.install()\n"
        "for line in range(1000):\n    print('line', line, flush=True)\n"
        "deadline = time.time() + 30\n"
        "while not logs() and time.time() < deadline:\n    time.sleep(0.05)\n"
        "print('the end', flush=True)\n"
    )
    job = make(tmp_path, body)
    done = job.run("--log_size=none")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(f"line {line}\n" for line in range(1000)) + "the end\n"
    assert job.log("node0/rank0.out.log") == "the end\n"
    assert job.log("node0/rank0.out.log.1").endswith("line 999\n")


def test_a_log_that_takes_both_streams_begins_anew_for_both(tmp_path: pathlib.Path) -> None:
    log, former = tmp_path / "all.log", tmp_path / "all.log.1"
    body = (
        "import os, sys, time\n"
        "from solo import log_size\n"
        "log_size.LOOK_S = 0.02\n"
        "log_size.install()\n"
        "for line in range(1000):\n    print('line', line, flush=True)\n"
        "deadline = time.time() + 30\n"
        "while not os.path.exists(sys.argv[1]) and time.time() < deadline:\n    time.sleep(0.02)\n"
        "time.sleep(0.2)\n"  # ten looks: a second one must not move the new file away
        "print('out', flush=True)\n"
        "print('err', file=sys.stderr, flush=True)\n"
    )
    with log.open("w") as both:
        command = [sys.executable, "-c", body, former]
        env = {**os.environ, "SOLO_LOG_SIZE": "5000"}
        subprocess.run(command, stdout=both, stderr=both, env=env, check=True, timeout=60)
    assert former.read_text().endswith("line 999\n")
    assert log.read_text() == "out\nerr\n"


def test_the_console_survives_the_moment_in_which_a_log_has_no_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rank0.out.log"
    path.write_text("before\n")
    shown = io.BytesIO()
    copy = run_logs.Copy(path, io.TextIOWrapper(shown))
    deadline = time.monotonic() + 30
    while not shown.getvalue() and time.monotonic() < deadline:
        time.sleep(run_logs.POLL_S)
    path.rename(tmp_path / "rank0.out.log.1")
    time.sleep(4 * run_logs.POLL_S)
    path.write_text("after\n")
    time.sleep(4 * run_logs.POLL_S)
    copy.finish()
    assert shown.getvalue() == b"before\nafter\n"


def test_tee_shows_every_rank_with_node_and_rank(tmp_path: pathlib.Path) -> None:
    done = make(tmp_path, "print('x')").run("--device_count=2", "--tee=3")
    assert sorted(done.stdout.splitlines()) == ["n0/r0: x", "n0/r1: x"]


def test_redirects_keep_the_console_clean(tmp_path: pathlib.Path) -> None:
    job = make(tmp_path, "print('x')")
    assert job.run("-r", "3").stdout == ""
    assert job.log("node0/rank0.out.log") == "x\n"


def test_job_json_tells_the_command_and_never_the_token(tmp_path: pathlib.Path) -> None:
    job = make(tmp_path, "")
    token = tmp_path / "token"
    token.write_text("the-secret")
    token.chmod(0o600)
    assert job.run(f"--token_file={token}", "--job_id=mine").returncode == 0
    text = job.log("job.json")
    told = json.loads(text)
    assert str((job.logs / "latest").readlink()) == "mine"
    assert told["schema"] == 1
    assert told["command"][-1] == str(job.script)
    assert told["environment"]["SOLO_JOB_ID"] == "mine"
    assert told["torch"].startswith("2.")
    assert "the-secret" not in text


def test_a_temporary_log_dir_is_told(tmp_path: pathlib.Path) -> None:
    job = make(tmp_path, "")
    words = [word for word in job.words if "log_dir" not in word]
    done = run(*words, job.script, TMPDIR=str(tmp_path))
    assert done.returncode == 0
    path = done.stderr.removeprefix("solorun: logs in ").strip()
    assert path.startswith(str(tmp_path))
    assert pathlib.Path(path, "node0", "rank0.out.log").exists()


def test_without_solo_it_is_torchrun_itself(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(
        "import os, sys\nours = [name for name in os.environ if name.startswith('SOLO_')]\n"
        "line = ' '.join([os.environ['WORLD_SIZE'], *sys.argv[1:], *ours])\n"
        "os.write(1, line.encode() + b'\\n')"
    )
    done = run("--nproc-per-node=2", script, "--solo")
    assert done.returncode == 0
    assert done.stdout == "2 --solo\n" * 2


def test_a_fixed_world_meets_and_says_for_whom_it_waits(tmp_path: pathlib.Path) -> None:
    body = (
        "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "print(dist.get_rank(), dist.get_world_size(), os.environ['SOLO_NNODES'])\n"
        "dist.barrier()\ndist.destroy_process_group()"
    )
    job = make(tmp_path, body)
    env = {"MARKS": str(job.marks), "SOLO_DISABLE": "1"}
    first = start(*job.words, "--nnodes=2", "--node_rank=0", job.script, **env)
    with contextlib.ExitStack() as stack:
        stack.callback(first.kill)
        time.sleep(6)  # the late one: the first has told by then that it waits
        second = run(*job.words, "--nnodes=2", "--node_rank=1", job.script, **env)
        out, errors = first.communicate(timeout=60)
    assert (first.returncode, out) == (0, "0 2 2\n"), errors
    assert (second.returncode, second.stdout) == (0, "1 2 2\n"), second.stderr
    assert "node 0: waiting for 1 of 2 nodes at 127.0.0.1:" in errors
    assert "\n  node 1: never connected\n" in errors


def test_a_fixed_world_begins_with_what_rank_0_holds_however_late_it_is(
    tmp_path: pathlib.Path,
) -> None:
    """As DDP does: scripts load a checkpoint on rank 0 alone."""
    body = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
torch.nn.init.constant_(model.weight, 7.0 if rank == 0 else 1.0)
model = DDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
if rank == 0:
    time.sleep(5)  # the other one is at its first step, and a fresh job may begin after 2 s
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
print(rank, model.module.weight.unique().tolist())
dist.destroy_process_group()
"""
    job = make(tmp_path, body)
    env = {"MARKS": str(job.marks)}
    with contextlib.ExitStack() as stack:
        nodes = [
            start(*job.words, "--nnodes=2", f"--node_rank={rank}", job.script, **env)
            for rank in range(2)
        ]
        for node in nodes:
            stack.callback(node.kill)
        ends = [node.communicate(timeout=90) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], ends
    assert [out for out, _ in ends] == ["0 [7.0]\n", "1 [7.0]\n"], ends


def test_a_node_that_never_comes_ends_a_fixed_world_with_75(tmp_path: pathlib.Path) -> None:
    job = make(tmp_path, "")
    words = [word for word in job.words if "timeout" not in word]
    done = run(*words, "--timeout=4s", "--nnodes=3", "--node_rank=0", job.script)
    assert done.returncode == 75
    assert "SOLO-E022" in done.stderr
    assert "node 1: never connected" in done.stderr
    assert "node 2: never connected" in done.stderr
    assert "Traceback" not in done.stderr


def test_node_0_of_a_fixed_world_names_the_dead_node_and_does_not_wait_for_ever(
    tmp_path: pathlib.Path,
) -> None:
    body = (
        "mark('here')\n"
        "while rank == 1 or len(os.listdir(os.environ['MARKS'])) < 3:\n    time.sleep(0.05)"
    )
    job = make(tmp_path, body)
    words = [*(word for word in job.words if "timeout" not in word), "--timeout=8s", "--nnodes=2"]
    env = {"MARKS": str(job.marks), "SOLO_DISABLE": "1"}
    with contextlib.ExitStack() as stack:
        first = start(*words, "--node_rank=0", job.script, **env)
        stack.callback(first.kill)
        second = start(*words, "--node_rank=1", job.script, **env)
        stack.callback(second.kill)
        ranks = job.marked("here", 2)
        second.kill()
        assert gone([pid for pid in ranks if (job.marks / f"here.1.{pid}").exists()])
        (job.marks / "end").touch()
        code, errors = finish(first)
    assert code == 0, errors
    assert "node 0: waiting for 1 of 2 nodes to end, 3 s of 8 s\n  node 1: " in errors
    assert "node 0: ends without 1 of 2 nodes\n  node 1: " in errors


@pytest.mark.parametrize(
    ("name", "status"), [("Refused", 78), ("AuthError", 77), ("TimedOut", 75), ("SoloError", 1)]
)
def test_what_the_engine_refused_has_a_schedulers_status_and_no_traceback(
    tmp_path: pathlib.Path, name: str, status: int
) -> None:
    body = f"import solo.errors\nraise solo.errors.{name}('node_rank 1 is taken')"
    done = make(tmp_path, body).run()
    assert done.returncode == status
    assert f"solo.errors.{name}: node_rank 1 is taken" in done.stderr
    assert "Traceback" not in done.stderr
