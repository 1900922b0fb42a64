"""Scripts under Lightning, accelerate and the transformers Trainer, unmodified.

With one rank per node none of them wraps the model; with two, each wraps it in DDP.
"""

import pathlib
from collections.abc import Iterator

import pytest
import torch
from train_jobs import Job, Node, job

pytestmark = pytest.mark.slow


@pytest.fixture
def pair(tmp_path: pathlib.Path) -> Iterator[Job]:
    with job(tmp_path, SOLO_SYNC_INTERVAL="5", TEST_FOLDER=str(tmp_path)) as made:
        yield made


def check(nodes: list[Node], ranks: int) -> None:
    """Every rank of every node ended with the same bits, and has merged as often."""
    results = [node.result(local) for node in nodes for local in range(ranks)]
    first = results[0]
    assert first["version"] >= 2
    for other in results[1:]:
        assert other["version"] == first["version"]
        for name, tensor in first["state"].items():
            assert torch.equal(tensor, other["state"][name]), name
    told = [set(result["seen"]) for result in results]
    assert not told[0] & told[-1], "two nodes trained on the same data"


LIGHTNING = """
import logging, warnings
warnings.simplefilter("ignore")
import lightning as L
import solo

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 3))
        self.seen, self.versions = [], []
    def training_step(self, batch, index):
        x, y, row = batch
        self.seen += row.tolist()
        return F.cross_entropy(self.net(x), y)
    def validation_step(self, batch, index):
        self.versions.append(solo.version())
        self.state = {k: v.clone() for k, v in self.net.state_dict().items()}
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

L.seed_everything(1)
g = torch.Generator().manual_seed(5)
rows = TensorDataset(torch.randn(64, 8, generator=g), torch.randint(0, 3, (64,), generator=g),
                     torch.arange(64))
model = Net()
trainer = L.Trainer(
    accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="STRATEGY",
    max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, default_root_dir=os.environ["TEST_FOLDER"])
trainer.fit(model, DataLoader(rows, batch_size=4, shuffle=True), DataLoader(rows, batch_size=16))
result(state=model.state, version=model.versions[-1], seen=model.seen[:8])
"""


@pytest.mark.parametrize(("strategy", "ranks"), [("auto", 1), ("ddp", 1), ("ddp", 2)])
def test_lightning(pair: Job, strategy: str, ranks: int) -> None:
    check(pair.run(LIGHTNING.replace("STRATEGY", strategy), ranks=ranks), ranks)


ACCELERATE = """
from accelerate import Accelerator
from accelerate.utils import set_seed
import solo

set_seed(1)
accelerator = Accelerator(cpu=True)
g = torch.Generator().manual_seed(5)
rows = TensorDataset(torch.randn(64, 8, generator=g), torch.randint(0, 3, (64,), generator=g),
                     torch.arange(64))
net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 3))
model, optimizer, loader = accelerator.prepare(
    net, torch.optim.AdamW(net.parameters(), lr=0.01), DataLoader(rows, batch_size=4, shuffle=True))
seen = []
for epoch in range(2):
    for x, y, row in loader:
        seen += row.tolist()
        optimizer.zero_grad()
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()
state = {k: v.clone() for k, v in net.state_dict().items()}
result(state=state, version=solo.version(), seen=seen[:8])
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate(pair: Job, ranks: int) -> None:
    check(pair.run(ACCELERATE, ranks=ranks), ranks)


TRANSFORMERS = """
from transformers import Trainer, TrainingArguments
import solo

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.Linear(32, 3))
        self.seen = []
    def forward(self, x, labels, row):
        self.seen += row.tolist()
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}

g = torch.Generator().manual_seed(5)
rows = [dict(x=torch.randn(8, generator=g), labels=i % 3, row=i) for i in range(64)]
torch.manual_seed(1)
model = Net()
trainer = Trainer(model, TrainingArguments(os.environ["TEST_FOLDER"] + f"/{NODE}", use_cpu=True,
    per_device_train_batch_size=4, num_train_epochs=2, report_to=[], save_strategy="no",
    disable_tqdm=True, remove_unused_columns=False, logging_steps=1000), train_dataset=rows)
trainer.train()
state = {k: v.clone() for k, v in model.net.state_dict().items()}
result(state=state, version=solo.version(), seen=model.seen[:8])
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_transformers_trainer(pair: Job, ranks: int) -> None:
    check(pair.run(TRANSFORMERS, ranks=ranks), ranks)
