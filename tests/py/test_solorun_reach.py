"""Before Python starts: what a machine lacks, and whom a node meets at the master's address."""

from __future__ import annotations

import pathlib
import re
import socket

import pytest
from solorun_jobs import master
from solorun_process import free_port, run, start


def test_a_master_that_dies_in_the_middle_of_a_handshake_is_no_stranger(
    tmp_path: pathlib.Path,
) -> None:
    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    words = ["--solo", f"--master_url={url}", "--node_rank=1", f"--log_dir={tmp_path}"]
    for _ in range(20):  # until this process was quick enough to look like one that dies
        with socket.create_server(("127.0.0.1", port)) as dying:
            node = start(*words, "--no_python", "true")
            dying.settimeout(60)
            half_way, _ = dying.accept()
        half_way.close()
        with master(url, "--job_id=true"):
            _, said = node.communicate(timeout=90)
        assert "closed by the other side" not in said
        if node.returncode == 0:
            return
    pytest.fail(said)


def test_doctor_without_a_script_does_not_mind_whose_job_it_is() -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    with master(url, "--job_id=theirs"):
        done = run("doctor", f"--master_url={url}")
        assert re.search(r"^ok    master ", done.stdout, re.M)
        assert "belongs to job" in run("doctor", f"--master_url={url}", "--job_id=ours").stdout


@pytest.mark.parametrize("limit", [24, 64])
def test_a_limit_of_open_files_with_which_nothing_starts_is_told(
    tmp_path: pathlib.Path, limit: int
) -> None:
    few = ("sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh")
    url = f"--master_url=tcp://127.0.0.1:{free_port()}"
    words = ("--solo", "--node_rank=0", url, f"--log_dir={tmp_path}", "--dry_run", __file__)
    node = start(*words, prefix=few)
    said = "".join(node.communicate(timeout=90))
    assert f"at most {limit} open files" in said
    assert node.returncode == (71 if limit < 64 else 0)
    assert ("SOLO-E053" in said and "fix: ulimit -n 65536" in said) or limit == 64
