"""What solorun promises to answer at once, and which test holds each promise.

The table is the promise. Those that need a stranger at the other end are tested here: a master of
another version, a service that speaks another protocol, a driver that knows of GPUs.
"""

from __future__ import annotations

import contextlib
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "py"))
from solorun_process import SOLORUN, environment, failure, free_port, run

TESTS = pathlib.Path(__file__).parents[1]
SCRIPT = str(pathlib.Path(__file__))

PROMISES = {
    "no --master_url where more nodes are expected": (
        "py/test_solorun_messages.py",
        "test_a_missing_master_url_is_told_where_more_nodes_are_expected",
    ),
    "a malformed --master_url": (
        "py/test_solorun_messages.py",
        "test_a_malformed_master_url_is_answered_with_the_form",
    ),
    "--node_rank missing": ("py/test_solorun_messages.py", "test_a_missing_node_rank_is_told"),
    "--node_rank negative": (
        "py/test_solorun_messages.py",
        "test_a_node_rank_that_is_none_is_told",
    ),
    "--node_rank held by another live node": (
        "py/test_solorun_master.py",
        "test_a_node_rank_held_by_a_live_node_is_told_with_its_address",
    ),
    "a second master for the job": (
        "py/test_solorun_master.py",
        "test_a_second_master_names_the_first",
    ),
    "--device_count against CUDA_VISIBLE_DEVICES": (
        "py/test_solorun_messages.py",
        "test_more_ranks_than_visible_devices_is_told",
    ),
    "--device_count beyond the GPUs": (
        "e2e/test_answered_at_once.py",
        "test_more_ranks_than_gpus_is_told",
    ),
    "port in use": (
        "py/test_solorun_master.py",
        "test_a_port_held_by_a_stranger_is_told_with_its_holder",
    ),
    "nothing listening at the master": (
        "py/test_solorun_messages.py",
        "test_nothing_listening_is_told_at_once_and_again_at_the_deadline",
    ),
    "who is missing in a fixed world": (
        "py/test_solorun_run.py",
        "test_a_fixed_world_meets_and_says_for_whom_it_waits",
    ),
    "a loopback --worker_url with a remote master": (
        "py/test_solorun_messages.py",
        "test_a_loopback_worker_url_with_a_remote_master_is_refused",
    ),
    "another solo": ("e2e/test_answered_at_once.py", "test_another_solo_at_the_master_is_told"),
    "another wire": ("e2e/test_answered_at_once.py", "test_another_protocol_is_told"),
    "another torch": ("py/test_solorun_master.py", "test_another_torch_than_the_jobs_is_told"),
    "another model, dtype or layout": (
        "e2e/test_rounds.py",
        "test_what_differs_between_nodes_is_refused_with_both_values",
    ),
    "another interval, outer rule or codec": (
        "py/test_solorun_master.py",
        "test_another_setting_than_the_jobs_is_told_before_python_starts",
    ),
    "script not found": (
        "py/test_solorun_messages.py",
        "test_a_script_that_is_not_there_is_told_with_the_folder",
    ),
    "--sync_interval 0": ("py/test_solorun_messages.py", "test_an_interval_that_is_none_is_told"),
    "a token file that others can read": (
        "py/test_solorun_messages.py",
        "test_a_token_file_that_others_can_read_is_refused",
    ),
    "an unknown flag": (
        "py/test_solorun_args.py",
        "test_an_unknown_flag_is_answered_with_the_nearest_known_one",
    ),
    "memory that cannot hold it": (
        "py/test_scripts_life.py",
        "test_memory_that_does_not_suffice_is_told_with_figures",
    ),
    "a directory that cannot be written": (
        "py/test_solorun_messages.py",
        "test_a_directory_where_files_cannot_be_made_is_told_before_the_master_is_asked",
    ),
    "a damaged state file": (
        "py/test_scripts_life.py",
        "test_a_state_file_that_is_damaged_ends_its_node_with_65",
    ),
}


@pytest.mark.parametrize("promise", PROMISES)
def test_every_promise_has_its_test(promise: str) -> None:
    file, name = PROMISES[promise]
    assert re.search(rf"^def {name}\(", (TESTS / file).read_text(), re.MULTILINE), (file, name)


# ---- a node that speaks with a stranger ---------------------------------------------------------


@contextlib.contextmanager
def other_protocol() -> Iterator[int]:
    """A server whose handshake says wire version 99; its port."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client:
                        client.recv(56)
                        answer = b"solo-hi\n" + (99).to_bytes(2, "little") + b"\1" + bytes(37)
                        client.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)


def node_1(port: int, folder: pathlib.Path) -> list[str]:
    return ["--solo", "--node_rank=1", f"--master_url=tcp://127.0.0.1:{port}",
            f"--log_dir={folder}/logs", "--job_id=j", SCRIPT]  # fmt: skip


def test_another_protocol_is_told(tmp_path: pathlib.Path) -> None:
    with other_protocol() as port:
        message = failure(run(*node_1(port, tmp_path)), 18, 78)
    assert "speaks protocol" in message and f"at tcp://127.0.0.1:{port}" in message


def test_another_solo_at_the_master_is_told(tmp_path: pathlib.Path) -> None:
    other = tmp_path / "solorun"
    shutil.copy(SOLORUN, other)
    ours = subprocess.run([SOLORUN, "--version"], capture_output=True, text=True).stdout.split()[1]
    theirs = ours[:-1] + ("8" if ours[-1] == "9" else "9")
    other.write_bytes(SOLORUN.read_bytes().replace(ours.encode() + b"\0", theirs.encode() + b"\0"))
    port = free_port()
    master = subprocess.Popen(
        [other, "master", f"--master_url=tcp://127.0.0.1:{port}", "--job_id=j"],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert master.stderr and "master of job" in master.stderr.readline()
        message = failure(run(*node_1(port, tmp_path)), 19, 78)
    finally:
        master.kill()
        master.wait()
    assert f"this node has solo {ours}, the master {theirs}" in message


# ---- a machine with GPUs ------------------------------------------------------------------------

DRIVER = """
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
"""


@pytest.mark.skipif(
    pathlib.Path("/proc/driver/nvidia/gpus").exists(), reason="this machine has real GPUs"
)
def test_more_ranks_than_gpus_is_told(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "driver.c"
    source.write_text(DRIVER)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    driver = {"LD_LIBRARY_PATH": str(tmp_path)}
    message = failure(run("--solo", "--device_count=3", SCRIPT, **driver), 30, 64)
    assert "--device_count 3, but this node has 2 GPUs" in message
    assert "--device_count 2" in message
    done = run("--solo", "--dry_run", "--device_count=gpu", SCRIPT, **driver)
    assert "--nproc-per-node=2" in done.stdout, done.stderr
