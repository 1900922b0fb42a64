"""Every mistake is answered at once: what happened, why, and how to mend it, with its code."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest
from solorun_process import (
    SOLORUN,
    command_of,
    environment,
    failure,
    free_port,
    listening,
    run,
)

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = str(pathlib.Path(__file__))
REMOTE = "--master_url=tcp://10.0.0.1:29400"


def test_the_page_of_errors_is_what_solorun_prints() -> None:
    assert (ROOT / "docs" / "errors.md").read_text() == run("errors").stdout


def test_every_code_in_the_source_is_on_the_page() -> None:
    source = (ROOT / "launcher" / "message.h").read_text()
    page = (ROOT / "docs" / "errors.md").read_text()
    codes = re.findall(r"CODE_\w+ = (\d+),", source)
    assert len(codes) > 30
    for code in codes:
        assert code == "0" or f"SOLO-E{int(code):03}" in page


# ---- addresses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.1:29400", "tcp://", "tcp://a:b", "tcp://a:0", "tcp://a:70000", "fd00::1:29400"],
)
def test_a_malformed_master_url_is_answered_with_the_form(url: str) -> None:
    message = failure(run("--solo", f"--master_url={url}", SCRIPT), 10, 64)
    assert "tcp://10.0.0.1:29400" in message


def test_a_missing_master_url_is_told_where_more_nodes_are_expected() -> None:
    env = {"PET_NNODES": "3", "PET_NODE_RANK": "1"}
    assert "3 nodes are expected" in failure(run("--solo", SCRIPT, **env), 10, 64)
    assert "node 1" in failure(run("--solo", "--node_rank=1", SCRIPT), 10, 64)


def test_a_loopback_master_is_refused_where_a_scheduler_expects_more_nodes() -> None:
    env = {"SLURM_NNODES": "2", "SLURM_NODEID": "0"}
    words = ["--solo", "--master_url=tcp://127.0.0.1:29400", SCRIPT]
    assert "SLURM_NNODES expects 2 nodes" in failure(run(*words, **env), 21, 64)


def test_a_loopback_worker_url_with_a_remote_master_is_refused() -> None:
    words = ["--solo", "--node_rank=1", REMOTE, "--worker_url=tcp://127.0.0.1:5000", "--insecure"]
    message = failure(run(*words, SCRIPT), 20, 64)
    assert "tcp://127.0.0.1:5000 is loopback" in message
    assert "--worker_url tcp://" in message


def test_a_worker_url_of_another_machine_is_refused_if_all_nodes_are_on_this_one() -> None:
    message = failure(run("--solo", "--worker_url=tcp://1.2.3.4:5", SCRIPT), 20, 64)
    assert "--worker_url tcp://1.2.3.4:5 is not an address of this machine" in message


def test_a_worker_url_that_must_be_mapped_is_warned_of() -> None:
    words = (REMOTE, "--node_rank=1", "--insecure", "--worker_url=tcp://1.2.3.4:5")
    done = run("--solo", "--dry_run", *words, SCRIPT)
    assert done.returncode == 0
    assert "warning SOLO-E020: --worker_url tcp://1.2.3.4:5 is not an address" in done.stderr
    assert "mapped to port 5 here" in done.stderr


def test_worker_and_master_of_node_0_need_two_ports() -> None:
    words = ["--master_url=tcp://127.0.0.1:5000", "--worker_url=tcp://127.0.0.1:5000"]
    assert "5001" in failure(run("--solo", *words, SCRIPT), 20, 64)


def test_a_taken_worker_port_is_told_with_its_holder_and_a_free_one() -> None:
    with listening() as port:
        done = run("--solo", f"--worker_url=tcp://127.0.0.1:{port}", SCRIPT)
        message = failure(done, 15, 71)
    assert f"pid {os.getpid()} (" in message
    assert "is free" in message


# ---- ranks and devices ------------------------------------------------------------------------


def test_a_missing_node_rank_is_told() -> None:
    assert "--node_rank is missing" in failure(run("--solo", REMOTE, SCRIPT), 11, 64)


@pytest.mark.parametrize("rank", ["-1", "x", "1.5", "", "99999999999"])
def test_a_node_rank_that_is_none_is_told(rank: str) -> None:
    done = run("--solo", f"--node_rank={rank}", REMOTE, SCRIPT)
    failure(done, 11, 64)


def test_a_node_rank_outside_of_a_fixed_world_is_told() -> None:
    words = ["--solo", "--nnodes=2", "--node_rank=2", REMOTE, SCRIPT]
    assert "from 0 to 1" in failure(run(*words), 11, 64)


def test_without_solo_a_rank_outside_of_the_world_would_hang_torchrun() -> None:
    assert "5 of 2 nodes" in failure(run("--nnodes=2", "--node_rank=5", SCRIPT), 11, 64)
    assert "1 of 1 node" in failure(run("--node_rank=1", SCRIPT), 11, 64)
    assert "abc" in failure(run("--nnodes=abc", "--node_rank=1", SCRIPT), 2, 64)
    command_of("--rdzv-backend=c10d", "--node_rank=1", SCRIPT)


def test_more_ranks_than_visible_devices_is_told() -> None:
    done = run("--solo", "--device_count=3", SCRIPT, CUDA_VISIBLE_DEVICES="0,1")
    message = failure(done, 30, 64)
    assert "CUDA_VISIBLE_DEVICES=0,1 names 2" in message
    assert "--device_count 2" in message
    done = run("--device_count=3", SCRIPT, CUDA_VISIBLE_DEVICES="0,1")
    failure(done, 30, 64)  # also without --solo
    command_of("--solo", "--device_count=3", "--device=cpu", SCRIPT, CUDA_VISIBLE_DEVICES="0,1")


def test_gpus_count_inside_of_what_is_visible() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "4,7,GPU-abc"}
    setting, command = command_of("--solo", "--gpus=0,2", "--device_count=gpu", SCRIPT, **env)
    assert setting["CUDA_VISIBLE_DEVICES"] == "4,GPU-abc"
    assert "--nproc-per-node=2" in command
    message = failure(run("--solo", "--gpus=3", SCRIPT, **env), 30, 64)
    assert "names 3" in message
    assert "0 to 2" in message
    assert command_of("--solo", "--gpus=none", SCRIPT, **env)[0]["CUDA_VISIBLE_DEVICES"] == ""
    failure(run("--solo", "--gpus=all", SCRIPT, **env), 30, 64)


@pytest.mark.parametrize("gpus", ["-1", ",,", ",", "0,", "0,,1", "0,-1", "0,1,0"])
def test_a_list_of_gpus_with_a_gap_or_a_repetition_is_told(gpus: str) -> None:
    done = run("--solo", f"--gpus={gpus}", SCRIPT, CUDA_VISIBLE_DEVICES="4,7")
    assert f"--gpus {gpus}" in failure(done, 30, 64)


def test_a_device_with_a_number_means_one_rank() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "4,7"}
    setting, command = command_of("--solo", "--device=cuda:1", SCRIPT, **env)
    assert setting["CUDA_VISIBLE_DEVICES"] == "7"
    assert setting["SOLO_DEVICE"] == "cuda"
    assert "--nproc-per-node=1" in command
    failure(run("--solo", "--device=cuda:2", SCRIPT, **env), 30, 64)
    failure(run("--solo", "--device=tpu", SCRIPT, **env), 2, 64)


@pytest.mark.parametrize("flag", ["--device_count", "--sync_interval", "--tee", "--log_dir"])
def test_a_flag_that_took_the_script_for_its_value_is_named(flag: str) -> None:
    message = failure(run("--solo", flag, "t.py"), 3, 64)
    assert f"{flag} took t.py" in message
    assert f"fix: {flag} VALUE t.py" in message


# ---- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "interval", ["0", "-1", "x", "0:0", "5:1", "0:1,0:2", "0:1,", "0:1;5:2", "99999999999"]
)
def test_an_interval_that_is_none_is_told(interval: str) -> None:
    failure(run("--solo", f"--sync_interval={interval}", SCRIPT), 31, 64)


@pytest.mark.parametrize("interval", ["1", "100", "0:1,500:16,5000:100"])
def test_numbers_and_schedules_are_intervals(interval: str) -> None:
    setting, _ = command_of("--solo", f"--sync_interval={interval}", SCRIPT)
    assert setting["SOLO_SYNC_INTERVAL"] == interval


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("--codec=int7", 2),
        ("--outer=sgd", 2),
        ("--outer=nesterov:lr=nan", 2),
        ("--outer=nesterov:lr=0", 2),
        ("--outer=nesterov:speed=1", 2),
        ("--outer=slowmo:beta=1", 2),
        ("--outer=avg:lr=1", 2),
        ("--outer=auto:lr=1", 2),
        ("--timeout=0", 2),
        ("--timeout=5x", 2),
        ("--lease=-1", 2),
        ("--nnodes=0", 2),
        ("--min_nodes=0", 2),
        ("--streams=0", 2),
        ("--memory=lots", 32),
        ("--log_size=big", 2),
        ("--job_id=a/b", 2),
        ("--job_id=.", 2),
        ("--job_id=latest", 2),
        ("--color=red", 2),
        ("--log_format=xml", 2),
    ],
)
def test_a_value_that_its_flag_does_not_take_is_told(word: str, code: int) -> None:
    message = failure(run("--solo", word, SCRIPT), code, 64)
    assert word.split("=")[0] in message or word.split("=")[0].replace("_", "-") in message


def test_more_nodes_than_the_world_has_will_never_come() -> None:
    failure(run("--solo", "--nnodes=2", "--min_nodes=3", "--node_rank=0", SCRIPT), 7, 64)


def test_more_memory_than_the_machine_has_is_told_with_the_figures() -> None:
    words = ["--solo", "--device=cpu", "--device_count=2", "--memory=900TiB"]
    message = failure(run(*words, SCRIPT), 32, 64)
    assert "for each of 2 ranks" in message
    assert "at most --memory " in message


# ---- files ------------------------------------------------------------------------------------


def test_a_script_that_is_not_there_is_told_with_the_folder(tmp_path: pathlib.Path) -> None:
    for words in (["missing.py"], ["--solo", "missing.py"]):
        message = failure(run(*words, cwd=tmp_path), 4, 127)
        assert "script missing.py: No such file" in message
        assert str(tmp_path) in message


def test_a_module_or_a_program_is_not_looked_for() -> None:
    assert command_of("-m", "package.module", "x")[1][-3:] == ["-m", "package.module", "x"]
    assert command_of("--no-python", "program")[1][-1] == "program"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_token_file_that_others_can_read_is_refused(tmp_path: pathlib.Path, mode: int) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(mode)
    message = failure(run("--solo", f"--token_file={token}", SCRIPT), 40, 77)
    assert f"chmod 600 {token}" in message
    assert "secret" not in message


def test_a_token_file_that_is_missing_empty_or_a_pipe_is_told(tmp_path: pathlib.Path) -> None:
    token = tmp_path / "token"
    assert "openssl rand" in failure(run("--solo", f"--token_file={token}", SCRIPT), 40, 77)
    token.write_text(" \n")
    token.chmod(0o600)
    assert "is empty" in failure(run("--solo", f"--token_file={token}", SCRIPT), 40, 77)
    token.unlink()
    os.mkfifo(token, 0o600)
    assert "no regular file" in failure(run("--solo", f"--token_file={token}", SCRIPT), 40, 77)


def test_other_machines_need_a_token_or_insecure_spoken_out_loud() -> None:
    words = ["--solo", "--node_rank=1", REMOTE]
    message = failure(run(*words, SCRIPT), 41, 77)
    assert "--token_file" in message
    done = run("--dry_run", "--insecure", *words, SCRIPT)
    assert done.returncode == 0
    assert "warning SOLO-E041: --insecure" in done.stderr
    command_of(*words, SCRIPT, SOLO_TOKEN="x")


def test_a_log_or_state_dir_that_cannot_be_is_told(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    bad = f"{tmp_path}/file/below"
    assert "not a directory" in failure(run("--solo", f"--log_dir={bad}", SCRIPT), 50, 73).lower()
    failure(run("--solo", f"--state_dir={bad}", SCRIPT), 51, 73)
    assert "--log_dir is empty" in failure(run("--solo", "--log_dir=", SCRIPT), 50, 73)
    assert "--state_dir is empty" in failure(run("--solo", "--state_dir", "", SCRIPT), 51, 73)
    failure(run(f"--log_dir={bad}", SCRIPT), 50, 73)  # plain torchrun would show a traceback


@pytest.mark.parametrize(("flag", "code"), [("--log_dir", 50), ("--state_dir", 51)])
def test_a_directory_where_files_cannot_be_made_is_told_before_the_master_is_asked(
    flag: str, code: int
) -> None:
    """Permissions say nothing: root may write to /proc, and no file can be made there."""
    words = ("--solo", "--node_rank=1", f"--master_url=tcp://127.0.0.1:{free_port()}")
    for path in ("/proc", "/proc/solo"):
        message = failure(run(*words, f"{flag}={path}", SCRIPT), code, 73)
        assert f"{flag} {path} cannot be written" in message


def test_a_directory_that_was_tried_holds_no_trace(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "deep" / "state"
    command_of("--solo", f"--state_dir={folder}", SCRIPT)
    assert not folder.exists()
    words = ("--solo", "--node_rank=1", f"--master_url=tcp://127.0.0.1:{free_port()}")
    failure(run(*words, "--timeout=1", f"--state_dir={folder}", SCRIPT), 12, 69)
    assert list(folder.iterdir()) == []


def test_a_link_that_a_stranger_laid_in_a_directory_is_not_followed_when_it_is_tried(
    tmp_path: pathlib.Path,
) -> None:
    """Nor is a file in the way of a node that has this one's name and pid, as in containers."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "shared"
    folder.mkdir()
    words = f"--solo --node_rank=1 --master_url=tcp://127.0.0.1:{free_port()} --timeout=1"
    laid = "for end in $$ $(uname -n).$$; do ln -s ../victim .solo-probe.$end; done"
    done = subprocess.run(
        ["sh", "-c", f"{laid}; exec {SOLORUN} {words} --state_dir=. {SCRIPT}"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
    )
    failure(done, 12, 69)
    assert victim.read_text() == "precious"


# ---- Python and torch ---------------------------------------------------------------------------


def test_no_python_is_told(tmp_path: pathlib.Path) -> None:
    done = run(SCRIPT, VIRTUAL_ENV="", PATH=str(tmp_path))
    assert "SOLO-E060" in done.stderr
    assert done.returncode == 127


def test_a_python_without_torch_is_told(tmp_path: pathlib.Path) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    message = failure(run(SCRIPT, VIRTUAL_ENV=str(tmp_path)), 61, 127)
    assert f"{python} has no torch" in message
    assert "because it is in $VIRTUAL_ENV" in message
    report = run("doctor", VIRTUAL_ENV=str(tmp_path)).stdout
    assert re.search(r"solo for this torch +not compared: no torch$", report, re.M)


def make_environment(folder: pathlib.Path, torch: str, built_for: str) -> None:
    site = folder / "lib" / "python3.11" / "site-packages"
    (site / f"torch-{torch}.dist-info").mkdir(parents=True)
    (site / "solo").mkdir()
    (site / "solo" / "_c10d.so").write_bytes(
        b"\0solo: built for torch " + built_for.encode() + b"\0"
    )
    (site / "solo" / "_C.abi3.so").write_bytes(b"\x7fELF" + bytes(100))
    (folder / "bin").mkdir()
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.2\n")
    (folder / "bin" / "python3").write_text("#!/bin/sh\nexit 1\n")
    (folder / "bin" / "python3").chmod(0o755)


def test_a_solo_for_another_torch_is_told(tmp_path: pathlib.Path) -> None:
    make_environment(tmp_path, "2.14.1+cu130", "2.13")
    message = failure(run("--solo", SCRIPT, VIRTUAL_ENV=str(tmp_path)), 62, 78)
    assert "built for torch 2.13" in message
    assert "2.14.1+cu130" in message
    assert "in solo's source: pip install --no-build-isolation" in message


CUT_SHORT = b"\x7fELF" + bytes(36) + (1 << 20).to_bytes(8, "little") + bytes(52)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"text" * 100, "it is no shared library"),
        (b"\x7fELF", "it is no shared library"),
        (CUT_SHORT, "its end is missing"),
    ],
)
def test_a_damaged_solo_is_told_before_python_starts(
    tmp_path: pathlib.Path, content: bytes | None, says: str
) -> None:
    make_environment(tmp_path, "2.13.0", "2.13")
    (library,) = tmp_path.glob("lib/*/site-packages/solo/_C.abi3.so")
    library.unlink()
    if content is not None:
        library.write_bytes(content)
    message = failure(run("--solo", SCRIPT, VIRTUAL_ENV=str(tmp_path)), 62, 78)
    assert f"solo is damaged: {library}: {says}" in message


def test_the_python_of_the_environment_is_used(tmp_path: pathlib.Path) -> None:
    make_environment(tmp_path, "2.13.9", "2.13")
    assert command_of(SCRIPT, VIRTUAL_ENV=str(tmp_path))[1][0] == f"{tmp_path}/bin/python3"
    assert "torch 2.13.9" in run("--version", VIRTUAL_ENV=str(tmp_path)).stdout


# ---- the master ---------------------------------------------------------------------------------


def test_nothing_listening_is_told_at_once_and_again_at_the_deadline(
    tmp_path: pathlib.Path,
) -> None:
    url = f"--master_url=tcp://127.0.0.1:{free_port()}"
    done = run("--solo", "--node_rank=1", url, "--timeout=1s", f"--log_dir={tmp_path}", SCRIPT)
    message = failure(done, 12, 69)
    first = message.splitlines()[0]
    assert first.startswith("solorun: node 1: waiting for the master at tcp://127.0.0.1:")
    assert "node 0: never answered: connection refused" in message
    assert "next: solorun doctor --node_rank 1 --master_url" in message


def test_a_name_that_is_not_found_is_waited_for_too(tmp_path: pathlib.Path) -> None:
    words = ["--solo", "--node_rank=1", "--master_url=tcp://no-such-host.invalid", "--insecure"]
    message = failure(run(*words, "--timeout=1s", f"--log_dir={tmp_path}", SCRIPT), 12, 69)
    assert "the name is not found" in message


@contextlib.contextmanager
def web_server() -> Iterator[int]:
    """Something that answers, but is no master."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = server.accept()
                    with peer:
                        peer.recv(64)
                        peer.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n" + b"x" * 64)

        threading.Thread(target=serve, daemon=True).start()
        yield int(server.getsockname()[1])


def test_a_foreign_service_at_the_masters_port_is_told(tmp_path: pathlib.Path) -> None:
    with web_server() as port:
        url = f"--master_url=tcp://127.0.0.1:{port}"
        done = run("--solo", "--node_rank=1", url, f"--log_dir={tmp_path}", SCRIPT)
    assert "is not a solo master" in failure(done, 16, 78)


# ---- form ---------------------------------------------------------------------------------------


def test_a_message_has_its_parts_in_order() -> None:
    lines = run("--solo", "--sync_interval=0", SCRIPT).stderr.splitlines()
    assert lines == [
        "solorun: error SOLO-E031: --sync_interval 0",
        "  why: an interval is at least 1 step",
        "  fix: a number of optimizer steps as in 100, or a schedule as in 0:1,500:16",
    ]


def test_messages_can_be_json_lines() -> None:
    import json

    done = run("--solo", "--sync_interval=0", "--log_format=json", SCRIPT)
    line = json.loads(done.stderr)
    assert (line["level"], line["code"], line["text"]) == (
        "error",
        "SOLO-E031",
        "--sync_interval 0",
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])


def test_colour_is_for_terminals_or_on_demand() -> None:
    assert "\033[" not in run("--bad").stderr
    done = run("--solo", "--color=always", "--sync_interval=0", SCRIPT)
    assert "\033[1;31m" in done.stderr


def test_doctor_shows_every_check_with_its_fix() -> None:
    done = run("doctor", "--sync_interval=0", f"--master_url=tcp://127.0.0.1:{free_port()}")
    assert done.returncode == 64
    assert re.search(r"^ok    python ", done.stdout, re.M)
    assert re.search(r"^FAIL  sync .*\n +why: .*\n +fix: ", done.stdout, re.M)


def test_doctor_speaks_json() -> None:
    import json

    done = run("doctor", "--json", f"--master_url=tcp://127.0.0.1:{free_port()}")
    report = json.loads(done.stdout)
    assert report["schema"] == 1
    assert {check["check"] for check in report["checks"]} > {"python", "torch", "devices", "token"}
    assert all(check["result"] in ("ok", "warn", "fail") for check in report["checks"])


def test_status_of_nobody_is_an_error() -> None:
    message = failure(run("status", f"tcp://127.0.0.1:{free_port()}"), 12, 69)
    assert "fix: check host and port" in message
    failure(run("status", "http://x"), 10, 64)
