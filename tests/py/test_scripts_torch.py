"""Scripts that use more of torch: compiled steps, two models in turn, copied optimizers."""

import pathlib
from collections.abc import Iterator

import pytest
from train_jobs import MODEL, Job, job, same


@pytest.fixture
def pair(tmp_path: pathlib.Path) -> Iterator[Job]:
    """A job that begins with two nodes."""
    with job(tmp_path, SOLO_SYNC_INTERVAL="4") as made:
        yield made


END = """
dist.init_process_group("gloo")  # whose end is the script's
dist.destroy_process_group()
result(state=model.state_dict())
"""


@pytest.mark.parametrize("compiled", ["train", "optimizer.step"])
def test_a_script_may_compile_its_step(pair: Job, compiled: str) -> None:
    script = (
        MODEL
        + """
model = build()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = data().tensors

def train():
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()

COMPILED = torch.compile(COMPILED, backend="eager")
for step in range(6):
    train()
""".replace("COMPILED", compiled)
        + END
    )
    assert same(*pair.run(script))


def test_a_merge_between_the_passes_of_another_model_is_no_error(pair: Job) -> None:
    """Of memory that is not contiguous, which a merge copies to: as all on a GPU."""
    script = (
        MODEL
        + """
torch.manual_seed(NODE)
maker = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1))
judge = nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 1))
model = nn.ModuleList([maker, judge]).to(memory_format=torch.channels_last)
makes = torch.optim.Adam(maker.parameters(), lr=1e-3)
judges = torch.optim.Adam(judge.parameters(), lr=1e-3)
for step in range(6):
    fake = maker(torch.randn(4, 2, 8, 8))
    judges.zero_grad()
    (judge(fake.detach()) - judge(torch.randn(4, 2, 8, 8))).mean().backward()
    judges.step()  # merges both
    makes.zero_grad()
    judge(fake).mean().backward()
    makes.step()
"""
        + END
    )
    assert same(*pair.run(script))


COPIED = """
import copy, pickle
model = build()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
model, optimizer = COPY
x, y = data().tensors
for step in range(6):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "copy",
    ["copy.deepcopy((model, optimizer))", "pickle.loads(pickle.dumps((model, optimizer)))"],
)
def test_an_optimizer_that_is_a_copy_is_followed(pair: Job, copy: str) -> None:
    assert same(*pair.run(MODEL + COPIED.replace("COPY", copy) + END))


def test_a_script_s_default_device_is_not_used_for_the_sync(pair: Job) -> None:
    script = (
        MODEL
        + """
dist.init_process_group("gloo")
model = build()
model[2].weight.data = model[2].weight.data.t().contiguous().t()
wrapped = DDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = data().tensors
torch.set_default_device("meta")
for step in range(6):
    optimizer.zero_grad()
    F.cross_entropy(wrapped(x), y).backward()
    optimizer.step()
dist.destroy_process_group()
result(state=model.state_dict())
"""
    )
    assert same(*pair.run(script, ranks=2))


def test_a_saved_wrapper_needs_no_solo_to_be_loaded(pair: Job) -> None:
    script = (
        MODEL
        + """
import pickle
dist.init_process_group("gloo")
wrapped = DDP(build())
early = pickle.dumps(wrapped)
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
x, y = data().tensors
for step in range(4):
    learn(wrapped, optimizer, x, y)
for saved in (early, pickle.dumps(wrapped), pickle.dumps(optimizer)):
    assert b"solo" not in saved
again = pickle.loads(pickle.dumps(wrapped))
assert torch.equal(again(x), wrapped(x))
dist.destroy_process_group()
result(state=wrapped.module.state_dict())
"""
    )
    assert same(*pair.run(script))
