"""What torchrun is given: its own flags unchanged, ours translated."""

from __future__ import annotations

import argparse
import pathlib

import pytest
from solorun_process import command_of, failure, run
from torch.distributed import run as torchrun

SCRIPT = str(pathlib.Path(__file__))
OURS = {"nnodes", "node_rank", "log_dir"}  # torchrun's and ours: translated
VALUES = {
    "nproc_per_node": "2",
    "nnodes": "1:4",
    "node_rank": "0",
    "start_method": "fork",
    "redirects": "0:3,1:1",
    "tee": "3",
    "local_ranks_filter": "0,1",
    "numa_binding": "node",
    "role": "-odd",
    "rdzv_conf": "timeout=5,a=b",
    "max_restarts": "3",
    "monitor_interval": "0.5",
    "shutdown_timeout": "7",
    "master_port": "123",
}


def cases() -> list[tuple[str, list[str]]]:
    """Every spelling of every flag of torchrun's own parser, with a value if it takes one."""
    found = []
    for action in torchrun.get_args_parser()._actions:
        for option in action.option_strings:
            if action.dest == "help":
                continue
            if action.nargs == 0:
                found.append((action.dest, [option]))
                continue
            value = VALUES.get(action.dest, "some")
            found.append(
                (action.dest, [f"{option}={value}"] if option[1] == "-" else [option, value])
            )
            if not value.startswith("-"):
                found.append((action.dest, [option, value]))
    return found


CASES = cases()


def understood(words: list[str]) -> argparse.Namespace:
    return torchrun.parse_args(words)


@pytest.mark.parametrize(("dest", "words"), CASES, ids=[" ".join(words) for _, words in CASES])
def test_torchrun_understands_the_same_with_and_without_us(dest: str, words: list[str]) -> None:
    command = command_of(*words, SCRIPT, "--own", "1")[1]
    assert command[1:3] == ["-m", "torch.distributed.run"]
    direct = understood([*words, SCRIPT, "--own", "1"])
    assert understood(command[3:]) == direct
    if dest not in OURS:
        assert command[3 : 3 + len(words)] == words  # as written


def test_a_flag_that_torch_gains_fails_the_test_above() -> None:
    known = run("--help_all").stdout
    for action in torchrun.get_args_parser()._actions:
        if action.option_strings and action.dest != "help":
            assert f"--{action.dest}" in known


def test_two_dashes_after_the_script_reach_it() -> None:
    command = command_of(SCRIPT, "--", "--x")[1]
    args = understood(command[3:])
    assert args.training_script == SCRIPT
    assert args.training_script_args == ["--", "--x"]


def test_a_flag_of_the_script_may_be_the_beginning_of_several_of_torchruns() -> None:
    assert understood(command_of(SCRIPT, "--n", "4")[1][3:]).training_script_args == ["--n", "4"]


def test_without_solo_our_flags_become_torchruns(tmp_path: pathlib.Path) -> None:
    words = ["--device_count=2", "--nnodes=2", "--node_rank=1", "--master_url=tcp://[fd00::1]:5"]
    command = command_of(*words, f"--log_dir={tmp_path}", SCRIPT)[1]
    args = understood(command[3:])
    assert (args.nproc_per_node, args.nnodes, args.node_rank) == ("2", "2", 1)
    assert (args.master_addr, args.master_port, args.log_dir) == ("fd00::1", 5, str(tmp_path))


def test_without_solo_nothing_is_added() -> None:
    setting, command = command_of(SCRIPT)
    assert command[3:] == [SCRIPT]
    assert setting == {}


def test_without_solo_a_flag_of_the_sync_is_ignored_with_one_line() -> None:
    done = run("--dry_run", "--sync_interval=5", "--codec=int8", SCRIPT)
    assert done.stderr == (
        "solorun: without --solo these have no meaning: --sync_interval --codec "
        "(add --solo, or leave them out)\n"
    )


def test_elastic_is_one_standalone_torchrun() -> None:
    setting, command = command_of("--solo", "--device_count=3", "--max-restarts=2", SCRIPT)
    assert command[1:4] == ["-P", "-m", "solo.run"]
    args = understood(command[4:])
    assert args.standalone
    assert args.local_addr == "127.0.0.1"
    assert args.nproc_per_node == "3"
    assert args.max_restarts == 2
    assert args.logs_specs == "solo"
    assert setting["SOLO_DEVICE_COUNT"] == "3"
    assert setting["GLOO_SOCKET_IFNAME"] == setting["NCCL_SOCKET_IFNAME"] == "lo"


def test_fixed_is_a_static_rendezvous_in_numbers_beside_the_masters_port() -> None:
    words = ["--solo", "--nnodes=2", "--node_rank=1", "--timeout=90s", "--device_count=2"]
    setting, command = command_of(*words, "--master_url=tcp://localhost:29400", SCRIPT)
    args = understood(command[4:])
    assert (args.nnodes, args.node_rank, args.nproc_per_node) == ("2", 1, "2")
    assert args.master_addr in ("127.0.0.1", "::1")
    assert args.local_addr == args.master_addr
    assert args.master_port == 29401
    assert args.rdzv_conf == "timeout=90"
    assert setting["SOLO_NNODES"] == "2"


def test_the_environment_is_the_contract(tmp_path: pathlib.Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o600)
    words = [
        "--solo",
        "--node_rank=0",
        "--timeout=5m",
        "--sync_interval=0:1,500:16",
        "--outer=nesterov:lr=0.7",
        "--codec=int8",
        f"--log_dir={tmp_path}/logs",
        "--job_id=j1",
        f"--token_file={token}",
        "--min_nodes=2",
        f"--state_dir={tmp_path}/state",
        "--memory=2GiB",
        "--log_size=3MiB",
        "--device=cpu",
        "--no_sync_at_epoch_end",
        "--linger",
        "--lease=500ms",
        "--streams=3",
        "--insecure",
    ]
    setting, _ = command_of(*words, SCRIPT)
    wanted = {
        "SOLO_ENABLE": "1",
        "SOLO_MASTER_URL": "tcp://127.0.0.1:29400",
        "SOLO_NODE_RANK": "0",
        "SOLO_DEVICE_COUNT": "1",
        "SOLO_TIMEOUT": "300",
        "SOLO_SYNC_INTERVAL": "0:1,500:16",
        "SOLO_OUTER": "nesterov:lr=0.7",
        "SOLO_CODEC": "int8",
        "SOLO_LOG_DIR": f"{tmp_path}/logs",
        "SOLO_JOB_ID": "j1",
        "SOLO_TOKEN_FILE": str(token),
        "SOLO_MIN_NODES": "2",
        "SOLO_STATE_DIR": f"{tmp_path}/state",
        "SOLO_MEMORY": str(2 << 30),
        "SOLO_LOG_SIZE": str(3 << 20),
        "SOLO_DEVICE": "cpu",
        "SOLO_NO_SYNC_AT_EPOCH_END": "1",
        "SOLO_LINGER": "1",
        "SOLO_LEASE": "0.5",
        "SOLO_STREAMS": "3",
        "SOLO_INSECURE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    assert {name: setting.get(name) for name in wanted} == wanted
    assert "SOLO_NNODES" not in setting
    assert int(setting["OMP_NUM_THREADS"]) >= 1
    assert "secret" not in run("--dry_run", *words, SCRIPT).stdout


def test_threads_of_the_user_are_left_alone() -> None:
    assert "OMP_NUM_THREADS" not in command_of("--solo", SCRIPT, OMP_NUM_THREADS="3")[0]


@pytest.mark.parametrize(
    "words",
    [
        ["--rdzv-backend=c10d"],
        ["--rdzv_endpoint", "host:1"],
        ["--rdzv_id=x"],
        ["--rdzv-conf=a=b"],
        ["--master-addr=host"],
        ["--master_port", "1"],
        ["--nnodes=1:4"],
    ],
)
def test_elastic_refuses_torchruns_rendezvous_and_says_why(words: list[str]) -> None:
    message = failure(run("--solo", *words, SCRIPT), 6, 64)
    assert "together with --solo" in message
    assert "why: " in message


def test_nproc_per_node_is_device_count_and_both_must_agree() -> None:
    command = command_of("--solo", "--nproc-per-node=2", SCRIPT)[1]
    assert "--nproc-per-node=2" in command
    message = failure(run("--solo", "--nproc-per-node=2", "--device_count=3", SCRIPT), 7, 64)
    assert "--device_count 3 and --nproc-per-node 2" in message
