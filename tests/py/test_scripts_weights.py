"""What each node weighs in the mean: the samples that its steps were trained on."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
import torch
from train_jobs import Job, job

from solo.samples import Fetched, batch_size

# Node 0 moves the weight by -1 a step, node 1 by +2, in as many steps and with other batches.
SCRIPT = """
class Opaque:
    def __init__(self, rows):
        self.rows = rows

size = 8 if NODE == 0 else 24
rows = TensorDataset(torch.ones(4 * size, 1), torch.ones(4 * size))
collate = Opaque if NODE == 1 and OPAQUE else None
model = nn.Linear(1, 1, bias=False)
nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
for batch in DataLoader(rows, batch_size=size, collate_fn=collate):
    for other in DataLoader(rows, batch_size=1):  # an evaluation without no_grad
        pass
    optimizer.zero_grad()
    loss = model.weight.sum()
    (loss if NODE == 0 else -2 * loss).backward()
    optimizer.step()
result(state=model.state_dict())
"""


@pytest.fixture
def pair(tmp_path: pathlib.Path) -> Iterator[Job]:
    """A job that begins with two nodes and merges at the end of the pass."""
    with job(tmp_path, SOLO_SYNC_INTERVAL="1000") as made:
        yield made


def merged(pair: Job, script: str) -> list[float]:
    return [float(node.result()["state"]["weight"]) for node in pair.run(script)]


def test_nodes_with_uneven_batches_weigh_by_their_samples(pair: Job) -> None:
    mean = (32 * -4 + 96 * 8) / (32 + 96)
    assert merged(pair, "OPAQUE = False\n" + SCRIPT) == [mean, mean]


def test_a_batch_whose_size_cannot_be_told_makes_every_node_weigh_by_steps(pair: Job) -> None:
    assert merged(pair, "OPAQUE = True\n" + SCRIPT) == [2.0, 2.0]


# Without a DataLoader a node joins in its first step: it computed that gradient at its own values.
OTHER_VALUES = """
model = nn.Linear(1, 1, bias=False)
nn.init.constant_(model.weight, 0.0 if NODE == 0 else 5.0)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
for step in range(4):
    optimizer.zero_grad()
    loss = model.weight.sum()
    (loss if NODE == 0 else -2 * loss).backward()
    optimizer.step()
import solo.ddp
solo.ddp._at_exit()
result(state=model.state_dict())
"""


def test_a_step_that_was_thrown_away_has_no_weight(pair: Job) -> None:
    first_founded = 0 + (4 * -4 + 3 * 6) / (4 + 3)
    second_founded = 5 + (3 * -3 + 4 * 8) / (3 + 4)
    one, other = merged(pair, OTHER_VALUES)
    assert one == other
    assert min(abs(one - first_founded), abs(one - second_founded)) < 1e-6


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.ones(5, 3), 5),
        ([torch.ones(4, 3), torch.ones(4)], 4),
        ({"name": ["a", "b"], "x": torch.ones(2, 9)}, 2),
        ((("text",), [torch.ones(7)]), 7),
        (torch.tensor(1.0), None),
        ("abc", None),
        (object(), None),
        ([], None),
    ],
)
def test_a_batch_has_the_first_dimension_of_its_first_tensor(
    batch: object, size: int | None
) -> None:
    assert batch_size(batch) == size


def test_a_batch_that_holds_itself_is_no_trap() -> None:
    batch: list[object] = []
    batch.append(batch)
    assert batch_size(batch) is None


def test_what_is_handed_out_without_gradients_is_not_trained_on() -> None:
    fetched = Fetched()
    with torch.no_grad():
        assert fetched.add(torch.ones(100, 1)) == 0
    fetched.add(torch.ones(8, 1))
    assert fetched.take() == 8
    assert fetched.take() == 0


def test_one_unknown_batch_makes_its_step_unknown_and_not_the_next() -> None:
    fetched = Fetched()
    fetched.add(object())
    fetched.add(torch.ones(8, 1))
    assert fetched.take() is None
    fetched.add(torch.ones(8, 1))
    assert fetched.take() == 8
