"""Nodes that join late, are killed, interrupted, fail or may not begin; the others go on."""

import json
import pathlib
import signal
from collections.abc import Iterator

import pytest
from train_jobs import DDP_SCRIPT, MODEL, Job, Node, free_port, job, same


@pytest.fixture
def pair(tmp_path: pathlib.Path) -> Iterator[Job]:
    """A job that begins with two nodes."""
    with job(tmp_path, SOLO_SYNC_INTERVAL="4") as made:
        yield made


UNTIL_ALONE = (
    MODEL
    + """
import time, solo
dist.init_process_group("gloo")
model = DDP(build())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = data().tensors
had_company, alone, first = False, 0, None
while alone < 40:  # until the other node has come and gone
    learn(model, optimizer, x, y)
    first = solo.version() if first is None else first
    had_company |= len(solo.members()) == 2
    alone += had_company and len(solo.members()) == 1
    time.sleep(0.002)
dist.destroy_process_group()
result(state=model.module.state_dict())
"""
)


def company(tmp_path: pathlib.Path, made: Job) -> tuple[Node, Node]:
    """Two nodes of which the second has merged with the first."""
    stays = made.start(0, UNTIL_ALONE)
    stays.until("round 1")
    goes = made.start(1, UNTIL_ALONE)
    goes.until("of 2 nodes")
    return stays, goes


def test_a_late_joiner_starts_from_the_job_s_model_and_ends_with_the_job(
    tmp_path: pathlib.Path,
) -> None:
    script = (
        MODEL
        + """
import time, solo
dist.init_process_group("gloo")
model = DDP(build())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = data().tensors
marker = os.environ["TEST_MARKER"]
for step in range(100_000):
    learn(model, optimizer, x, y)
    if NODE == 0 and len(solo.members()) == 2 and not os.path.exists(marker):
        open(marker, "w").close()
        last = solo.version() + 3
    if NODE == 0 and os.path.exists(marker) and solo.version() >= last:
        break
    time.sleep(0.002)
dist.destroy_process_group()
result(state=model.module.state_dict(), version=solo.version())
"""
    )
    with job(
        tmp_path, min_nodes=1, SOLO_SYNC_INTERVAL="20", TEST_MARKER=str(tmp_path / "m")
    ) as made:
        founder = made.start(0, script)
        founder.until("round 1")
        joiner = made.start(1, script)
        founder.wait(0)
        joiner.wait(0)
    assert "joins at version" in joiner.log() and "takes the job's values" in joiner.log()
    assert "the job is over" in joiner.log() and "exit code 0" in joiner.log()
    assert "node 1 joined" in founder.log()


def test_with_linger_a_joiner_goes_on_when_the_founders_have_finished(
    tmp_path: pathlib.Path,
) -> None:
    script = UNTIL_ALONE.replace(
        "while alone < 40:", "while alone < 40 if NODE else not had_company:"
    )
    with job(tmp_path, min_nodes=1, linger=True, SOLO_SYNC_INTERVAL="20", SOLO_LINGER="1") as made:
        founder = made.start(0, script)
        founder.until("round 1")
        joiner = made.start(1, script)
        founder.wait(0)
        joiner.wait(0)
    assert "the job is over" not in joiner.log()
    assert joiner.result()["state"]  # it reached the end of its script


def test_a_node_that_is_killed_is_missed_by_nobody(tmp_path: pathlib.Path) -> None:
    with job(tmp_path, min_nodes=1, SOLO_SYNC_INTERVAL="20") as made:
        stays, goes = company(tmp_path, made)
        goes.processes[0].kill()
        stays.wait(0)
    assert "node 1 is gone (killed, crashed or cut off" in stays.log()
    assert "alone now" in stays.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_makes_a_node_leave_and_the_other_goes_on(
    number: signal.Signals, tmp_path: pathlib.Path
) -> None:
    ended = {signal.SIGTERM: -signal.SIGTERM, signal.SIGINT: -signal.SIGINT, signal.SIGUSR1: 0}
    events = tmp_path / "events.jsonl"
    with job(tmp_path, min_nodes=1, events_path=str(events), SOLO_SYNC_INTERVAL="20") as made:
        stays, goes = company(tmp_path, made)
        goes.processes[0].send_signal(number)
        goes.wait(ended[number])
        stays.wait(0)
    rows = [json.loads(line) for line in events.read_text().splitlines()]
    reasons = [row.get("text") for row in rows if row["event"] == "left" and row["node"] == 1]
    reason = "finished" if number == signal.SIGUSR1 else number.name
    assert reasons == [reason]
    assert f"node 1 is gone ({reason})" in stays.log()


def test_an_interrupt_reaches_a_node_that_waits_for_the_others(pair: Job) -> None:
    lone = pair.start(0, DDP_SCRIPT)
    lone.until("waiting to join the job")
    lone.processes[0].send_signal(signal.SIGINT)
    lone.wait(-signal.SIGINT)
    assert "KeyboardInterrupt" in lone.log()


def test_a_failing_script_leaves_without_a_last_merge(tmp_path: pathlib.Path) -> None:
    fails = (
        "    time.sleep(0.002)\n"
        "    if NODE == 1 and solo.version() > first + 1: raise ValueError('boom')\n"
    )
    script = UNTIL_ALONE.replace("    time.sleep(0.002)\n", fails)
    with job(tmp_path, min_nodes=1, SOLO_SYNC_INTERVAL="20") as made:
        stays = made.start(0, script)
        stays.until("round 1")
        made.start(1, script).wait(1)
        stays.wait(0)
    assert "node 1 is gone" in stays.log()


@pytest.mark.parametrize(
    ("ending", "code", "says"),
    [
        ("sys.exit(3)", 3, "SystemExit: 3"),
        ("try: sys.exit('x')\nfinally: dist.destroy_process_group()", 1, "SystemExit: x"),
        ("try: sys.exit(0)\nfinally: dist.destroy_process_group()", 0, "finished"),
        ("sys.exit()", 0, "finished"),
    ],
)
def test_an_exit_status_tells_the_others_whether_the_script_has_failed(
    tmp_path: pathlib.Path, ending: str, code: int, says: str
) -> None:
    leaves = "import sys\n" + UNTIL_ALONE.replace(
        "    time.sleep(0.002)\n",
        f"    time.sleep(0.002)\n    if solo.version() > first + 1: exec({ending!r}, globals())\n",
    )
    with job(tmp_path, min_nodes=1, SOLO_SYNC_INTERVAL="4") as made:
        stays = made.start(0, UNTIL_ALONE)
        stays.until("round 1")
        made.start(1, leaves).wait(code)
        stays.wait(0)
    assert f"node 1 is gone ({says})" in stays.log()


def test_a_model_that_changes_after_wrapping_is_a_clear_error(pair: Job) -> None:
    script = DDP_SCRIPT.replace(
        "for epoch in range(2):",
        "grow = lambda: setattr(model.module[0], 'extra', nn.Parameter(torch.zeros(2)))\n"
        "for epoch in range(2):\n    epoch == 1 and grow()",
    )
    nodes = [pair.start(rank, script) for rank in range(2)]
    for node in nodes:
        node.wait(1)
    assert "changed after solo took it over" in nodes[0].log()


def test_an_optimizer_of_another_model_later_is_a_clear_error(pair: Job) -> None:
    script = DDP_SCRIPT.replace(
        "dist.destroy_process_group()",
        "other = build()\n"
        "late = torch.optim.SGD(other.parameters(), lr=0.1)\n"
        "other(torch.ones(1, 8)).sum().backward()\n"
        "late.step()\n"
        "dist.destroy_process_group()",
    )
    nodes = [pair.start(rank, script) for rank in range(2)]
    for node in nodes:
        node.wait(1)
    assert "would be trained by this node alone" in nodes[0].log()


def test_memory_that_does_not_suffice_is_told_with_figures(pair: Job) -> None:
    node = pair.start(0, DDP_SCRIPT, SOLO_MEMORY="1000").wait(71)
    assert "gradients" in node.log() and "--memory" in node.log()


def test_what_stops_the_leader_stops_all_ranks_of_its_node(pair: Job) -> None:
    node = pair.start(0, DDP_SCRIPT, ranks=2, SOLO_MEMORY="1000").wait(71)
    assert "--memory" in node.log(0)


def test_a_script_that_trains_nothing_is_told(pair: Job) -> None:
    node = pair.start(0, "print(torch.ones(1))").wait()
    assert "nothing was merged" in node.log()


def test_a_job_that_ended_while_a_node_started_is_not_waited_for_until_the_timeout(
    tmp_path: pathlib.Path,
) -> None:
    made = Job(tmp_path, f"tcp://127.0.0.1:{free_port()}", SOLO_LEASE="0.5", SOLO_MASTER_SEEN="1")
    try:
        node = made.start(0, DDP_SCRIPT, SOLO_TIMEOUT="1000").wait(75)
    finally:
        made.end()
    assert "answered when this node was started and has been away for 5 s" in node.log()


def test_a_state_file_that_is_damaged_ends_its_node_with_65(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    more = {"SOLO_STATE_DIR": str(folder), "SOLO_SYNC_INTERVAL": "4"}
    with job(tmp_path, min_nodes=1, **more) as made:
        made.run(DDP_SCRIPT, count=1)
    (file,) = folder.iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with job(tmp_path, min_nodes=1, **more) as made:
        node = made.start(0, DDP_SCRIPT).wait(65)
    assert str(file) in node.log() and "checksum" in node.log()


@pytest.mark.parametrize(
    "end", ["sys.exit(3)", "dist.destroy_process_group(); raise SystemExit(3)"]
)
def test_a_forked_child_ends_while_its_parent_trains_on(pair: Job, end: str) -> None:
    forks = f"""
if dist.is_initialized() and dist.get_rank() == 0:
    child = os.fork()
    if child == 0:
        {end}
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
dist.destroy_process_group()
"""
    script = DDP_SCRIPT.replace("\ndist.destroy_process_group()\n", forks)
    assert same(*pair.run(script, ranks=2))


def test_a_forked_child_forms_groups_of_its_own_and_ends_them(pair: Job) -> None:
    forks = """
if dist.is_initialized() and dist.get_rank() == 0:
    child = os.fork()
    if child == 0:
        dist.destroy_process_group()  # its parent's
        for _ in range(2):
            store = dist.HashStore()
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
            dist.all_reduce(torch.ones(1))
            dist.destroy_process_group()
            assert not dist.is_initialized()
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
dist.destroy_process_group()
"""
    script = DDP_SCRIPT.replace("\ndist.destroy_process_group()\n", forks)
    assert same(*pair.run(script, ranks=2))
