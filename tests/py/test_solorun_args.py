"""How solorun understands what it is told: flags, variables, files, schedulers."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import pytest
from solorun_process import command_of, environment, failure, run, settings_of

HERE = pathlib.Path(__file__)
SCRIPT = str(HERE)  # any file that exists: --dry_run starts nothing
REMOTE = "tcp://10.0.0.1:29400"


@pytest.mark.parametrize(
    "words",
    [
        ["--sync_interval", "7"],
        ["--sync-interval", "7"],
        ["--sync_interval=7"],
        ["--sync-interval=7"],
    ],
)
def test_a_flag_is_taken_with_dash_or_underscore_and_equals_or_blank(words: list[str]) -> None:
    assert settings_of(*words)["sync_interval"] == ("7", "flag --sync_interval")


def test_every_flag_has_a_variable_and_a_key_and_help_shows_them_all(
    tmp_path: pathlib.Path,
) -> None:
    helped = run("--help_all").stdout
    flags = re.findall(r"^  --(\w+)( [A-Z]+)?  ", helped, re.M)
    actions = {"print_config", "dry_run", "version", "help", "help_all", "json", "config"}
    names = {name for name, _ in flags}
    assert len(names) > 25
    assert actions <= names
    for name, value in flags:
        if name in actions or name in ("color", "log_format"):
            continue
        variable = "SOLO_ENABLE" if name == "solo" else f"SOLO_{name.upper()}"
        text = "5" if value else "true"
        assert settings_of(**{variable: "5" if value else "1"})[name] == (
            text,
            f"environment {variable}",
        )
        (tmp_path / "solo.toml").write_text(f"# a comment\n\n{name} = {text}\n")
        assert settings_of(cwd=tmp_path)[name] == (text, "file solo.toml:3")


def test_the_first_source_in_the_order_wins(tmp_path: pathlib.Path) -> None:
    (tmp_path / "solo.toml").write_text('node-rank = 3\ndevice_count = "4"')
    layers = [
        ({"SLURM_NODEID": "1"}, "1", "scheduler SLURM_NODEID"),
        ({"PET_NODE_RANK": "4"}, "4", "torchrun's environment PET_NODE_RANK"),
        ({"NODE_RANK": "5"}, "5", "environment NODE_RANK"),
        ({"SOLO_NODE_RANK": "6"}, "6", "environment SOLO_NODE_RANK"),
    ]
    assert settings_of(**layers[0][0])["node_rank"] == layers[0][1:]
    assert settings_of(cwd=tmp_path, **layers[0][0])["node_rank"] == ("3", "file solo.toml:1")
    env: dict[str, str] = {}
    for more, value, source in layers[1:]:
        env |= more
        assert settings_of(cwd=tmp_path, **env)["node_rank"] == (value, source)
    assert settings_of("--node_rank=7", cwd=tmp_path, **env)["node_rank"][0] == "7"
    assert settings_of(cwd=tmp_path)["device_count"] == ("4", "file solo.toml:2")


def test_an_empty_variable_counts_as_unset() -> None:
    assert settings_of(SOLO_NODE_RANK="", PET_NODE_RANK="2")["node_rank"][0] == "2"


def test_a_file_may_be_named_and_the_users_own_comes_last(tmp_path: pathlib.Path) -> None:
    (tmp_path / "solo").mkdir()
    (tmp_path / "solo" / "config.toml").write_text("codec = 'int8'")
    (tmp_path / "job.toml").write_text('outer = "avg" # why not\nsolo = true')
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert settings_of(**env)["codec"][0] == "int8"
    found = settings_of("--config", tmp_path / "job.toml", **env)
    assert found["outer"][0] == "avg"
    assert found["solo"][0] == "true"
    assert found["codec"][1] == "default"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sync_intervall = 3", "did you mean sync_interval?"),
        ("[sync]", "no `name = value`"),
        ("codec = [1, 2]", "no value for codec"),
        ('codec = "int8', "no value for codec"),
        ("dry_run = true", "no setting `dry_run`"),
    ],
)
def test_a_bad_line_of_a_file_is_named(tmp_path: pathlib.Path, text: str, says: str) -> None:
    (tmp_path / "solo.toml").write_text(f"\n{text}\n")
    message = failure(run(SCRIPT, cwd=tmp_path), 5, 65)
    assert "solo.toml:2" in message
    assert says in message


def test_a_config_file_that_is_not_there_is_an_error() -> None:
    assert "/no/such.toml" in failure(run("--config=/no/such.toml", SCRIPT), 5, 65)


def test_two_explicit_sources_that_disagree_are_both_named() -> None:
    done = run("--dry_run", "--solo", "--sync_interval=9", SCRIPT, SOLO_SYNC_INTERVAL="8")
    assert done.returncode == 0
    assert "--sync_interval says 9, SOLO_SYNC_INTERVAL says 8" in done.stderr
    done = run("--dry_run", "--solo", "--sync_interval=8", SCRIPT, SOLO_SYNC_INTERVAL="8")
    assert done.stderr == ""


def test_a_switch_is_one_zero_true_or_false() -> None:
    assert settings_of(SOLO_ENABLE="true")["solo"][0] == "true"
    assert settings_of(SOLO_ENABLE="0")["solo"][0] == "off"
    assert settings_of("--solo=false")["solo"][0] == "off"
    assert "SOLO_ENABLE" in failure(run(SCRIPT, SOLO_ENABLE="maybe"), 2, 64)


def test_what_follows_the_script_is_the_scripts() -> None:
    own = ["--solo", "--sync_interval", "0", "--", "-m", "--unknown", ""]
    assert command_of(SCRIPT, *own)[1][-len(own) :] == own
    assert "SOLO_ENABLE" not in command_of(SCRIPT, "--solo")[0]


def test_what_follows_two_dashes_is_the_script() -> None:
    assert command_of("--", SCRIPT, "--solo")[1][-2:] == [SCRIPT, "--solo"]


def test_print_config_can_be_used_as_a_file(tmp_path: pathlib.Path) -> None:
    words = ["--solo", "--codec=int8", "--sync_interval=0:1,500:16", f"--master_url={REMOTE}"]
    done = run("--print_config", *words)
    (tmp_path / "solo.toml").write_text(done.stdout)
    again = settings_of(cwd=tmp_path)
    for name in ("solo", "codec", "sync_interval", "master_url"):
        assert again[name][0] == settings_of(*words)[name][0]


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("--slo", "--solo"),
        ("--sync_intervall", "--sync_interval"),
        ("--node-rnak=1", "--node_rank"),
        ("--nproc", "--nproc_per_node"),
        ("--rdzv_endpiont=x", "--rdzv_endpoint"),
    ],
)
def test_an_unknown_flag_is_answered_with_the_nearest_known_one(word: str, near: str) -> None:
    message = failure(run(word, SCRIPT), 1, 64)
    assert word in message
    assert f"did you mean {near}?" in message


def test_a_flag_without_its_value_says_so() -> None:
    assert "--codec needs a value" in failure(run("--codec"), 1, 64)
    assert "--codec needs a value" in failure(run("--codec", "--solo", SCRIPT), 1, 64)


def test_no_script_is_a_usage_error() -> None:
    assert "solorun --help" in failure(run(), 3, 64)
    assert "solorun --help" in failure(run("--solo"), 3, 64)


def test_help_is_one_screen_on_stdout_and_has_the_four_groups() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) < 45
    for group in ("Launch", "Network", "Sync", "Output"):
        assert f"\n{group}\n" in done.stdout


def test_version_names_torch_without_importing_it() -> None:
    import torch

    done = run("--version")
    assert f"torch {torch.__version__}" in done.stdout
    assert "solorun 0.1.0 (wire 3)" in done.stdout


def test_a_script_may_have_a_commands_name(tmp_path: pathlib.Path) -> None:
    (tmp_path / "doctor").write_text("")
    assert command_of("./doctor", cwd=tmp_path)[1][-1] == "./doctor"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_offers_every_flag_in_words_that_the_shell_understands(
    shell: str, tmp_path: pathlib.Path
) -> None:
    script = tmp_path / shell
    script.write_text(run("completion", shell).stdout)
    dash = "-l " if shell == "fish" else "--"
    helped = re.findall(r"^  --(\w+)", run("--help_all").stdout, re.M)
    for name in [*helped, "max_restarts"]:
        assert re.search(rf"{dash}{name}\b", script.read_text()), name
    if program := shutil.which(shell):
        subprocess.run([program, "-n", script], check=True)


def test_completion_for_another_shell_is_told_which_there_are() -> None:
    assert "solorun completion bash, zsh or fish" in failure(run("completion", "tcsh"), 2, 64)


def test_the_manual_has_every_flag_and_is_clean_troff() -> None:
    page = run("manual").stdout
    for name in re.findall(r"^  --(\w+)(?: [A-Z]+)?  ", run("--help_all").stdout, re.M):
        assert f".TP\n\\fB\\-\\-{name}\\fR" in page, name
    if program := shutil.which("groff"):
        words = [program, "-man", "-ww", "-Tutf8"]
        done = subprocess.run(words, input=page, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert "SOLORUN(1)" in done.stdout


# ---- schedulers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("d[1-2,7],e[01-03]", "d1"),
        ("gpu[007-012]", "gpu007"),
        ("alone", "alone"),
        ("a,b[1-2]", "a"),
        ("rack2-n[3,5]-ib", "rack2-n3-ib"),
    ],
)
def test_slurm_tells_rank_master_and_job(nodes: str, first: str) -> None:
    env = {
        "SLURM_NODEID": "1",
        "SLURM_NNODES": "3",
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_JOB_ID": "77",
        "SLURM_GPUS_ON_NODE": "4",
    }
    found = settings_of(**env)
    assert found["node_rank"] == ("1", "scheduler SLURM_NODEID")
    assert found["master_url"] == (f"tcp://{first}:29400", "scheduler SLURM_JOB_NODELIST")
    assert found["job_id"][0] == "77"
    assert found["device_count"][0] == "4"
    assert found["nodes expected"] == ("3", "SLURM_NNODES")
    assert found["nnodes"][1] == "default"  # a scheduler never chooses the fixed mode


def test_skypilot_and_indexed_jobs_tell_the_rank() -> None:
    sky = {"SKYPILOT_NODE_RANK": "2", "SKYPILOT_NUM_NODES": "3", "SKYPILOT_NODE_IPS": "10.1.1.1\n2"}
    found = settings_of(**sky)
    assert found["node_rank"] == ("2", "scheduler SKYPILOT_NODE_RANK")
    assert found["master_url"][0] == "tcp://10.1.1.1:29400"
    assert settings_of(JOB_COMPLETION_INDEX="4")["node_rank"][0] == "4"


def test_kubeflow_tells_address_and_expected_nodes_but_not_the_mode() -> None:
    env = {
        "PET_NNODES": "3",
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "29500",
        "PET_NPROC_PER_NODE": "2",
    }
    found = settings_of(**env)
    assert found["master_url"][0] == "tcp://127.0.0.1:29400"
    assert found["nodes expected"][0] == "3"
    setting, words = command_of("--solo", SCRIPT, **env)
    assert "--standalone" in words
    assert "--nproc-per-node=2" in words
    assert setting["PET_NNODES"] == "<unset>"
    assert setting["PET_MASTER_PORT"] == "<unset>"


def test_slurms_one_task_a_gpu_is_refused() -> None:
    env = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_NNODES": "2", "SLURM_NODEID": "0"}
    assert "--ntasks-per-node=1" in failure(run("--solo", SCRIPT, **env), 65, 64)


def test_the_tests_environment_is_clean() -> None:
    assert not [name for name in environment() if name.startswith("SOLO_")]
