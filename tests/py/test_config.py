"""The environment that solorun gives to a rank."""

import os
import pathlib

import pytest

from solo.config import Config, read_token
from solo.errors import AuthError, InvalidArgument


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Config.from_env({}) == Config()


def test_every_variable_of_the_contract_is_read() -> None:
    config = Config.from_env(
        {
            "SOLO_MASTER_URL": "tcp://10.0.0.1:29400",
            "SOLO_WORKER_URL": "tcp://10.0.0.2:1",
            "SOLO_NODE_RANK": "3",
            "SOLO_DEVICE_COUNT": "2",
            "SOLO_NNODES": "4",
            "SOLO_TIMEOUT": "7.5",
            "SOLO_SYNC_INTERVAL": "0:1,500:16",
            "SOLO_OUTER": "nesterov:lr=0.4,beta=0.9",
            "SOLO_CODEC": "int8",
            "SOLO_JOB_DIR": "logs/job",
            "SOLO_JOB_ID": "job",
            "SOLO_TOKEN": "secret",
            "SOLO_INSECURE": "1",
            "SOLO_MIN_NODES": "2",
            "SOLO_STATE_DIR": "state",
            "SOLO_MEMORY": "1000000",
            "SOLO_NO_SYNC_AT_EPOCH_END": "1",
            "SOLO_LINGER": "1",
            "SOLO_LEASE": "1.5",
            "SOLO_STREAMS": "4",
            "SOLO_MASTER_SEEN": "1",
            "SOLO_VERBOSE": "1",
            "LOCAL_WORLD_SIZE": "2",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "8",
            "RANK": "7",
        }
    )
    assert config.node_rank == 3 and config.device_count == 2 and config.nnodes == 4
    assert config.timeout == 7.5 and config.lease == 1.5 and config.streams == 4
    assert str(config.schedule) == "0:1,500:16"
    assert config.outer == "nesterov:lr=0.4,beta=0.9" and config.codec == "int8"
    assert config.job_dir == pathlib.Path("logs/job") and config.job_id == "job"
    assert config.token == "secret" and config.insecure and config.linger and config.verbose
    assert (
        config.master_seen
        and config.min_nodes == 2
        and config.state_dir == "state"
        and config.memory == 1_000_000
    )
    assert not config.sync_at_epoch_end and not config.elastic and not config.is_leader


def test_the_token_is_not_shown_with_the_settings() -> None:
    assert "secret" not in repr(Config.from_env({"SOLO_TOKEN": "secret"}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SOLO_NODE_RANK", "-1"),
        ("SOLO_NODE_RANK", "one"),
        ("SOLO_TIMEOUT", "0"),
        ("SOLO_TIMEOUT", "soon"),
        ("SOLO_INSECURE", "maybe"),
        ("SOLO_CODEC", "fp7"),
        ("SOLO_OUTER", "magic"),
        ("SOLO_MIN_NODES", "0"),
    ],
)
def test_a_wrong_variable_is_named_with_its_value(name: str, value: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Config.from_env({name: value})
    assert name in str(caught.value) and value in str(caught.value)


def test_a_device_count_other_than_the_started_ranks_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match="--device_count 1"):
        Config.from_env({"SOLO_DEVICE_COUNT": "4", "LOCAL_WORLD_SIZE": "1"})


def test_a_token_file_that_others_can_read_is_refused_with_the_fix(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "token"
    path.write_text("secret\n")
    path.chmod(0o644)
    with pytest.raises(AuthError, match="chmod 600"):
        read_token(path)
    path.chmod(0o600)
    assert read_token(path) == "secret"
    assert Config.from_env({"SOLO_TOKEN_FILE": str(path)}).token == "secret"


def test_a_token_file_that_is_missing_empty_or_a_pipe_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(AuthError, match="nowhere"):
        read_token(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.touch(mode=0o600)
    with pytest.raises(AuthError, match="empty"):
        read_token(empty)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(AuthError, match="no regular file"):
        read_token(tmp_path / "pipe")
