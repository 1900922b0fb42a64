"""Ordinary training scripts under the hooks: each node is a process, the master is real."""

import pathlib
from collections.abc import Iterator

import pytest
import torch
from train_jobs import DDP_SCRIPT, MODEL, Job, flat, free_port, job, same


@pytest.fixture
def pair(tmp_path: pathlib.Path) -> Iterator[Job]:
    """A job that begins with two nodes."""
    with job(tmp_path, SOLO_SYNC_INTERVAL="4") as made:
        yield made


def test_a_ddp_script_ends_with_the_same_bits_on_every_node(pair: Job) -> None:
    first, second = pair.run(DDP_SCRIPT)
    assert same(first, second)
    assert "founds the job" in first.log() + second.log()
    assert "2 of 2 nodes" in first.log() + second.log()


def test_a_script_that_never_destroys_its_group_merges_at_exit(pair: Job) -> None:
    script = (
        MODEL
        + """
import atexit
dist.init_process_group("gloo")
model = DDP(build())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x, y), _ in zip(DataLoader(data(), batch_size=8), range(6)):
    learn(model, optimizer, x, y)
import solo.ddp
atexit.unregister(solo.ddp._at_exit)
atexit.register(lambda: result(state=model.module.state_dict()))
atexit.register(solo.ddp._at_exit)
"""
    )
    assert same(*pair.run(script))


def test_a_script_without_a_wrapper_is_taken_over_through_its_optimizer(pair: Job) -> None:
    script = (
        MODEL
        + """
model = build()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = data().tensors
first = True
for step in range(8):
    before = model[0].weight.detach().clone()
    learn(model, optimizer, x, y)
    if step == 0:
        start, moved = before, len(optimizer.state) > 0
import atexit, solo.ddp
solo.ddp._at_exit()
result(state=model.state_dict(), start=start, moved=moved)
"""
    )
    first, second = pair.run(script)
    assert same(first, second)
    founder, other = sorted((first, second), key=lambda node: not node.result()["moved"])
    assert founder.result()["moved"]
    assert not other.result()["moved"], "a step from other values than the job's is thrown away"


def test_several_models_and_optimizers_are_merged_by_the_first_to_step(pair: Job) -> None:
    script = (
        MODEL
        + """
dist.init_process_group("gloo")
critic, maker = DDP(build(NODE)), DDP(build(NODE + 10))
slow = torch.optim.SGD(maker.parameters(), lr=0.1)
fast = torch.optim.SGD(critic.parameters(), lr=0.1)
x, y = data().tensors
import solo
versions = []
for step in range(8):
    for model, optimizer in ((critic, fast), (maker, slow)):
        learn(model, optimizer, x, y)
    versions.append(solo.version())
dist.destroy_process_group()
result(state={**{"c" + k: v for k, v in critic.module.state_dict().items()},
              **{"m" + k: v for k, v in maker.module.state_dict().items()}}, versions=versions)
"""
    )
    first, second = pair.run(script)
    assert first.result()["versions"] == [0, 0, 0, 1, 1, 1, 1, 2]
    state, other = first.result()["state"], second.result()["state"]
    assert all(torch.equal(state[k], other[k]) for k in state if k.startswith("c"))
    assert same(first, second)


def test_accumulation_counts_optimizer_steps_and_not_backward_passes(pair: Job) -> None:
    script = (
        MODEL
        + """
import solo
dist.init_process_group("gloo")
model = DDP(build(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = data().tensors
versions = []
for step in range(8):
    optimizer.zero_grad()
    with model.no_sync():
        F.cross_entropy(model(x), y).backward()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    versions.append(solo.version())
dist.destroy_process_group()
result(state=model.module.state_dict(), versions=versions)
"""
    )
    first, second = pair.run(script)
    assert first.result()["versions"] == [0, 0, 0, 1, 1, 1, 1, 2]
    assert same(first, second)


def test_a_step_that_a_grad_scaler_skips_counts_as_one(pair: Job) -> None:
    script = (
        MODEL
        + """
import solo
dist.init_process_group("gloo")
model = DDP(build())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
x, y = data().tensors
versions = []
for step in range(8):
    optimizer.zero_grad()
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    if NODE == 1 and step in (1, 2):
        model.module[0].weight.grad.fill_(float("inf"))
    scaler.step(optimizer)
    scaler.update()
    versions.append(solo.version())
dist.destroy_process_group()
result(state=model.module.state_dict(), versions=versions)
"""
    )
    first, second = pair.run(script)
    for node in (first, second):
        assert node.result()["versions"] == [0, 0, 0, 1, 1, 1, 1, 2]
    assert same(first, second)


def test_a_compiled_model_is_merged(pair: Job) -> None:
    script = (
        MODEL
        + """
net = build()
model = torch.compile(net, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = data().tensors
for step in range(8):
    learn(model, optimizer, x, y)
dist.init_process_group("gloo")
dist.destroy_process_group()
result(state=net.state_dict())
"""
    )
    assert same(*pair.run(script))


def test_a_compiled_wrapper_is_merged(pair: Job) -> None:
    script = DDP_SCRIPT.replace(
        "model = DDP(build())",
        'wrapped = DDP(build()); model = torch.compile(wrapped, backend="eager")',
    ).replace("model.module.", "wrapped.module.")
    assert same(*pair.run(script))


def test_the_model_is_merged_when_a_pass_over_the_data_ends(pair: Job) -> None:
    script = (
        MODEL
        + """
dist.init_process_group("gloo")
model = DDP(build())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data(), batch_size=64 // 6):  # 7 steps: 4 and 3
    learn(model, optimizer, x, y)
result(state={k: v.clone() for k, v in model.module.state_dict().items()})
for x, y in DataLoader(data(), batch_size=8):  # no step: nothing to merge
    model(x)
import solo
assert solo.version() == 2, solo.version()
dist.destroy_process_group()
"""
    )
    assert same(*pair.run(script))


def test_no_sync_at_epoch_end_leaves_it_to_the_interval(pair: Job) -> None:
    script = (
        MODEL
        + """
import solo
dist.init_process_group("gloo")
model = DDP(build())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data(), batch_size=64 // 6):
    learn(model, optimizer, x, y)
assert solo.version() == 1, solo.version()
dist.destroy_process_group()
result(state=model.module.state_dict())
"""
    )
    assert same(*pair.run(script, SOLO_NO_SYNC_AT_EPOCH_END="1"))


def test_samplers_are_split_over_the_members(pair: Job) -> None:
    script = (
        MODEL
        + """
import solo
dist.init_process_group("gloo")
model = DDP(build())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = TensorDataset(torch.arange(40))
distributed = DataLoader(rows, batch_size=4, sampler=DistributedSampler(rows, seed=3))
shuffled = DataLoader(rows, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))
plain = DataLoader(rows, batch_size=4)
seen = []
for loader in (distributed, shuffled, plain):
    seen.append([int(v) for batch in loader for v in batch[0]])
    assert len(loader) == len(seen[-1]) // 4, (len(loader), len(seen[-1]))
facts = (solo.data_rank(), solo.data_world_size(), len(solo.members()))
x, y = data().tensors
F.cross_entropy(model(x), y).backward()
optimizer.step()
dist.destroy_process_group()
result(state=model.module.state_dict(), seen=seen, facts=facts)
"""
    )
    first, second = pair.run(script)
    for mine, theirs in zip(first.result()["seen"][:2], second.result()["seen"][:2], strict=True):
        assert sorted(mine + theirs) == list(range(40))
    assert first.result()["seen"][2] == list(range(40))
    assert {first.result()["facts"], second.result()["facts"]} == {(0, 2, 2), (1, 2, 2)}


def test_a_script_s_own_collectives_stay_in_its_own_world(pair: Job) -> None:
    script = (
        MODEL
        + """
dist.init_process_group("gloo")
model = DDP(build())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = data().tensors
for step in range(5):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach())
    dist.barrier()
    things = [NODE]
    dist.broadcast_object_list(things)
    assert things == [NODE] and dist.get_world_size() == 1
dist.destroy_process_group()
result(state=model.module.state_dict())
"""
    )
    assert same(*pair.run(script))


def test_two_ranks_per_node_reduce_inside_and_merge_between(pair: Job) -> None:
    nodes = pair.run(DDP_SCRIPT, ranks=2)
    assert same(*nodes)
    for node in nodes:
        assert torch.equal(flat(node, 0), flat(node, 1))


def test_uneven_inputs_within_a_node_are_merged_after_the_join(pair: Job) -> None:
    script = (
        MODEL
        + """
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DDP(build())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with model.join():
    for x, y in DataLoader(data(64 if rank == 0 else 40), batch_size=8):
        learn(model, optimizer, x, y)
dist.destroy_process_group()
result(state=model.module.state_dict())
"""
    )
    nodes = pair.run(script, ranks=2)
    assert same(*nodes)
    assert torch.equal(flat(nodes[0], 0), flat(nodes[0], 1))


def test_nodes_with_uneven_data_all_end_and_none_waits_for_a_step_it_cannot_reach(
    pair: Job,
) -> None:
    script = DDP_SCRIPT.replace(
        "loader = DataLoader(data(),", "loader = DataLoader(data(40 + 48 * NODE),"
    )
    pair.run(script)


def test_scalars_for_tensorboard_are_written_to_the_job_s_folder(tmp_path: pathlib.Path) -> None:
    with job(tmp_path, min_nodes=1, SOLO_SYNC_INTERVAL="4", SOLO_JOB_DIR=str(tmp_path)) as made:
        made.start(0, DDP_SCRIPT).wait()
    [path] = (tmp_path / "tensorboard" / "node0").iterdir()
    assert b"solo/members" in path.read_bytes()


def test_solo_disable_runs_the_script_as_if_solo_were_not_there(pair: Job) -> None:
    node = pair.start(0, DDP_SCRIPT, SOLO_DISABLE="1").wait()
    assert node.log() == ""


def test_workers_of_a_dataloader_do_no_harm(pair: Job) -> None:
    script = DDP_SCRIPT.replace("batch_size=8)", "batch_size=8, num_workers=1)")
    assert same(*pair.run(script))


def test_an_explicit_sync_in_the_script_replaces_the_hooks(pair: Job) -> None:
    script = (
        MODEL
        + """
import solo
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sync = solo.IntervalSync(model, optimizer, interval=2)
x, y = data().tensors
for step in range(4):
    learn(model, optimizer, x, y)
    sync.step()
assert sync.version == 2
sync.close()
result(state=model.state_dict())
"""
    )
    assert same(*pair.run(script))


def test_fixed_mode_gives_ddp_the_node_s_ranks_and_leaves_the_world_global(
    tmp_path: pathlib.Path,
) -> None:
    script = (
        MODEL
        + """
dist.init_process_group("gloo")
assert dist.get_world_size() == 4
model = DDP(build(dist.get_rank() // 2))
assert dist.get_process_group_ranks(model.process_group) == [2 * NODE, 2 * NODE + 1]
try:
    DDP(build(), process_group=dist.group.WORLD)
except Exception as error:
    assert "spans nodes" in str(error)
else:
    raise AssertionError
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = data(64, seed=0)
sampler = DistributedSampler(rows)
for x, y in DataLoader(rows, batch_size=4, sampler=sampler):  # 4 steps
    learn(model, optimizer, x, y)
dist.barrier()
dist.destroy_process_group()
result(state=model.module.state_dict())
"""
    )
    with job(tmp_path, SOLO_SYNC_INTERVAL="4") as made:
        port = {"MASTER_PORT": str(free_port())}
        nodes = [
            made.start(
                rank,
                script,
                ranks=2,
                SOLO_NNODES="2",
                WORLD_SIZE="4",
                TEST_FIRST=str(2 * rank),
                **port,
            )
            for rank in range(2)
        ]
        for node in nodes:
            node.wait()
    states = [flat(node, 2 * rank + local) for rank, node in enumerate(nodes) for local in range(2)]
    assert all(torch.equal(state, states[0]) for state in states)


def test_the_backend_s_options_switch_the_interval_sync_on(pair: Job) -> None:
    script = DDP_SCRIPT.replace(
        'dist.init_process_group("gloo")',
        "import solo\n"
        'options = solo.Options(sync_interval=4, master_url=os.environ["SOLO_MASTER_URL"])\n'
        'dist.init_process_group("solo", pg_options=options)',
    )
    nodes = [pair.start(rank, script, SOLO_ENABLE="0") for rank in range(2)]
    assert same(*(node.wait() for node in nodes))
