"""solo.IntervalSync with a real master and real engines: nodes are threads of this process."""

import gc
import math
import pathlib
import threading
import time
import weakref

import pytest
import torch
from torch import nn
from train_jobs import master, nodes, settings

import solo
from solo import _C
from solo.interval import IntervalSync

_seeding = threading.Lock()  # torch's generator is one for all threads


def net(seed: int = 0, *, width: int = 64) -> nn.Module:
    with _seeding:
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 3)
        )


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([t.detach().double().reshape(-1) for t in module.state_dict().values()])


def batch(node: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * node + step)
    x = torch.randn(16, 8, generator=generator)
    return x, torch.randint(0, 3, (16,), generator=generator)


def train(module: nn.Module, optimizer: torch.optim.Optimizer, node: int, step: int) -> None:
    x, y = batch(node, step)
    optimizer.zero_grad()
    nn.functional.cross_entropy(module(x), y).backward()
    optimizer.step()


def test_interval_1_with_sgd_and_averaging_equals_ddp_to_rounding() -> None:
    steps, count = 12, 3
    reference = net()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        x, y = zip(*(batch(node, step) for node in range(count)), strict=True)
        nn.functional.cross_entropy(reference(torch.cat(x)), torch.cat(y)).backward()
        optimizer.step()

    def work(rank: int) -> nn.Module:
        module = net()
        sgd = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        with IntervalSync(module, sgd, config=settings(url, rank, min_nodes=count)) as sync:
            for step in range(steps):
                train(module, sgd, rank, step)
                assert sync.step()
        return module

    with master(min_nodes=count) as url:
        trained = nodes(count, work)
    for module in trained:
        assert torch.allclose(flat(module), flat(reference), atol=2e-6)
        assert torch.equal(flat(module), flat(trained[0]))


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("outer", ["avg", "slowmo", "nesterov"])
def test_replicas_hold_the_same_bits_after_every_merge(codec: str, outer: str) -> None:
    count, rounds = 3, 4
    barrier = threading.Barrier(count)
    seen: list[list[torch.Tensor]] = [[] for _ in range(rounds)]

    def work(rank: int) -> None:
        module = net(rank)
        adam = torch.optim.AdamW(module.parameters(), lr=1e-2)
        config = settings(url, rank, interval=2, codec=codec, outer=outer, min_nodes=count)
        sync = IntervalSync(module, adam, config=config)
        for step in range(2 * rounds):
            train(module, adam, rank, step)
            if sync.step():
                seen[step // 2].append(flat(module))
                barrier.wait(30)
        sync.close()

    with master(min_nodes=count) as url:
        nodes(count, work)
    for replicas in seen:
        assert len(replicas) == count
        assert all(torch.equal(replica, replicas[0]) for replica in replicas)
    assert not torch.equal(seen[0][0], seen[-1][0])


def test_weights_are_the_samples_that_each_node_trained_on() -> None:
    def work(rank: int) -> float:
        module = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(module.weight)
        with IntervalSync(module, config=settings(url, rank, min_nodes=2)) as sync:
            with torch.no_grad():
                module.weight.fill_(1.0 if rank else 5.0)
            sync.step(samples=30 if rank else 10)
            return module.weight.item()

    with master(min_nodes=2) as url:
        assert nodes(2, work) == [2.0, 2.0]


def test_batch_norm_statistics_are_averaged_and_counters_take_the_maximum() -> None:
    def work(rank: int) -> dict[str, torch.Tensor]:
        module = nn.Sequential(nn.BatchNorm1d(2))
        module.register_buffer("seen", torch.tensor(False))
        module.register_buffer("private", torch.tensor(float(rank)), persistent=False)
        with IntervalSync(module, config=settings(url, rank, min_nodes=2)) as sync:
            module[0].running_mean.fill_(2.0 * rank)
            module[0].num_batches_tracked.fill_(10 + rank)
            module.seen.fill_(rank == 1)
            sync.step()
            return dict(module.named_buffers())

    with master(min_nodes=2) as url:
        first, second = nodes(2, work)
    for rank, buffers in enumerate((first, second)):
        assert buffers["0.running_mean"].tolist() == [1.0, 1.0]
        assert buffers["0.num_batches_tracked"].item() == 11
        assert buffers["seen"].item() is True
        assert buffers["private"].item() == rank


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_are_merged_through_a_float32_anchor(dtype: torch.dtype) -> None:
    def work(rank: int) -> nn.Module:
        module = net(rank).to(dtype)
        with IntervalSync(module, config=settings(url, rank, min_nodes=2)) as sync:
            with torch.no_grad():
                module[0].weight.fill_(1.0 + 2.0 * rank)
            sync.step()
        return module

    with master(min_nodes=2) as url:
        first, second = nodes(2, work)
    assert torch.equal(flat(first), flat(second))
    assert first[0].weight.dtype == dtype
    assert torch.allclose(first[0].weight, torch.tensor(2.0, dtype=dtype), atol=1e-6)


def test_strided_tied_frozen_and_scalar_parameters_are_merged() -> None:
    class Odd(nn.Module):
        def __init__(self, rank: int) -> None:
            super().__init__()
            self.scalar = nn.Parameter(torch.tensor(float(rank)))
            self.conv = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
            self.tied = self.conv
            self.frozen = nn.Parameter(torch.full((3,), float(rank)), requires_grad=False)
            self.pairs = nn.Parameter(torch.full((2,), complex(rank, 1)))

    def work(rank: int) -> nn.Module:
        module = Odd(rank)
        with IntervalSync(module, config=settings(url, rank, min_nodes=2)) as sync:
            founder = module.frozen[0].item()
            with torch.no_grad():
                module.scalar.fill_(4.0 * rank)
                module.conv.weight.fill_(1.0 + rank)
                module.pairs.fill_(complex(rank, rank))
            sync.step()
            assert module.frozen.tolist() == [founder] * 3
        return module

    with master(min_nodes=2) as url:
        first, second = nodes(2, work)
    for module in (first, second):
        assert module.scalar.item() == 2.0
        assert torch.allclose(module.conv.weight, torch.tensor(1.5))
        assert module.pairs.tolist() == [0.5 + 0.5j] * 2
        assert module.conv.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("count", [1, 4000])
def test_models_of_one_and_of_thousands_of_parameters_are_merged(count: int) -> None:
    def work(rank: int) -> float:
        module = nn.ParameterList(nn.Parameter(torch.zeros(())) for _ in range(count))
        with IntervalSync(module, config=settings(url, rank, min_nodes=2)) as sync:
            with torch.no_grad():
                module[-1].fill_(2.0 * rank)
            sync.step()
            return module[-1].item()

    with master(min_nodes=2) as url:
        assert nodes(2, work) == [1.0, 1.0]


def test_a_nan_on_one_node_does_not_spread_and_is_healed() -> None:
    def work(rank: int) -> float:
        module = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(module.weight)
        with IntervalSync(module, config=settings(url, rank, min_nodes=2)) as sync:
            with torch.no_grad():
                module.weight.fill_(math.nan if rank else 3.0)
            sync.step()
            return module.weight.item()

    with master(min_nodes=2) as url:
        assert nodes(2, work) == [3.0, 3.0]


def test_a_nan_in_adam_s_moments_is_healed_with_the_parameter() -> None:
    def work(rank: int) -> float:
        module = nn.Linear(2, 2)
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
        with IntervalSync(module, optimizer, config=settings(url, rank, min_nodes=2)) as sync:
            for step in range(4):
                optimizer.zero_grad()
                module(torch.ones(1, 2)).sum().backward()
                if rank == 1 and step == 1:
                    module.weight.grad.fill_(math.nan)
                optimizer.step()
                sync.step()
        return float(optimizer.state[module.weight]["step"])

    with master(min_nodes=2) as url:
        # The node without the NaN keeps its moments, the other begins anew after the second step.
        assert nodes(2, work) == [4.0, 2.0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's
def test_logs_that_cannot_be_written_any_more_do_not_end_the_training(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")

    told: list[str] = []
    deadline = time.monotonic() + 60

    def work(rank: int) -> int:
        module = net(rank)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        config = settings(url, rank, job_dir=tmp_path)
        after = step = 0
        with IntervalSync(module, optimizer, config=config) as sync:
            while after < 20 and time.monotonic() < deadline:
                train(module, optimizer, rank, step)
                sync.step()
                if step == 0:  # moved, not removed: TensorBoard's thread may be writing into it now
                    (tmp_path / "tensorboard").rename(tmp_path / "moved away")
                told.append(capsys.readouterr().err)
                after += "no more TensorBoard scalars" in "".join(told)
                step += 1
                time.sleep(0.001)  # TensorBoard writes on a thread of its own
        return after

    with master() as url:
        assert nodes(1, work) == [20], "".join(told)


def test_a_late_joiner_takes_the_job_s_values_and_is_waited_for_by_nobody() -> None:
    ready = threading.Event()
    joined = threading.Event()

    def work(rank: int) -> tuple[int, float]:
        module = nn.Linear(1, 1, bias=False)
        nn.init.constant_(module.weight, 7.0 * rank)
        if rank == 1:
            assert ready.wait(30)
        sync = IntervalSync(module, config=settings(url, rank, interval=5))
        if rank == 1:
            taken = module.weight.item()
            assert sync.version >= 1 and sync.job_step >= 5
            joined.set()
        for _ in range(200):
            with torch.no_grad():
                module.weight.add_(1.0)
            if sync.step():
                ready.set()
            if sync.member_count == 2:
                break
            if rank == 0 and sync.version >= 2:
                joined.wait(30)
        assert sync.member_count == 2
        version = sync.version
        sync.close()
        return version, taken if rank else 0.0

    with master() as url:
        [(_, _), (version, taken)] = nodes(2, work)
    assert version >= 2 and taken >= 5.0 and taken % 5 == 0


def test_a_node_that_ends_early_leaves_and_the_others_go_on_with_right_weights() -> None:
    def work(rank: int) -> float:
        module = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(module.weight)
        with IntervalSync(module, config=settings(url, rank, interval=4, min_nodes=2)) as sync:
            for _ in range(2 if rank else 8):
                with torch.no_grad():
                    module.weight.add_(1.0 + rank)
                sync.step()
        return module.weight.item()

    with master(min_nodes=2) as url:
        first, second = nodes(2, work)
    assert second > 0 and math.isfinite(first)


def test_a_node_with_another_model_interval_or_codec_is_refused_by_name() -> None:
    with master() as url:
        sync = IntervalSync(net(), config=settings(url, 0))
        try:
            for rank, (module, more) in enumerate(
                [
                    (net(width=32), {}),
                    (net().half(), {}),
                    (net(), {"interval": 7}),
                    (net(), {"codec": "int8"}),
                    (net(), {"outer": "slowmo"}),
                ],
                start=1,
            ):
                with pytest.raises(solo.Mismatch) as caught:
                    IntervalSync(module, config=settings(url, rank, **more))
                assert "node" in str(caught.value), str(caught.value)
        finally:
            sync.close()


def test_a_second_node_with_the_same_rank_is_refused() -> None:
    with master() as url:
        sync = IntervalSync(net(), config=settings(url, 0))
        try:
            with pytest.raises(solo.Refused, match=r"127\.0\.0\.1"):
                IntervalSync(net(), config=settings(url, 0))
        finally:
            sync.close()


def test_no_master_is_told_within_the_timeout() -> None:
    config = settings("tcp://127.0.0.1:9", 0)
    with pytest.raises(solo.TimedOut, match=r"127\.0\.0\.1:9"):
        IntervalSync(net(), config=config.replace(timeout=0.5))
    with pytest.raises(solo.InvalidArgument, match="master_url"):
        IntervalSync(net())


def test_who_gives_up_for_want_of_nodes_is_told_how_many_were_asked_for() -> None:
    with master(min_nodes=2) as url:
        alone = settings(url, 0, min_nodes=2).replace(timeout=1.0)
        with pytest.raises(solo.TimedOut, match=r"let it in .*\(--min_nodes asks for 2\)"):
            IntervalSync(net(), config=alone)

        def work(rank: int) -> None:
            config = settings(url, rank, min_nodes=2).replace(timeout=30.0 if rank else 8.0)
            sync = IntervalSync(net(), config=config)
            if rank == 1:
                sync._merger.leave(finished=False, reason="gone")
                return
            with pytest.raises(solo.TimedOut, match=r"\(--min_nodes asks for 2, 1 here\)"):
                sync.step()

        nodes(2, work)


def test_a_wrong_token_is_refused() -> None:
    with master(token="right") as url:
        with pytest.raises(solo.AuthError):
            IntervalSync(net(), config=settings(url, 0, token="wrong").replace(timeout=5.0))
        IntervalSync(net(), config=settings(url, 0, token="right")).close()


def test_state_dict_tells_where_the_sync_is_and_gives_the_anchor() -> None:
    with master() as url:
        module = net()
        sync = IntervalSync(module, config=settings(url, 0, interval=3, outer="nesterov"))
        for _ in range(4):
            with torch.no_grad():
                module[0].weight.add_(0.1)
            sync.step()
        state = sync.state_dict()
        assert state["version"] == 1 and state["steps"] == 1 and state["step_count"] == 4
        assert state["job_step"] == 3
        torch.set_default_dtype(torch.float64)  # a script's own affair
        try:
            anchor = sync.state_dict()["anchor"]["2.weight"]
        finally:
            torch.set_default_dtype(torch.float32)
        assert torch.equal(anchor, module[2].weight.detach().flatten())
        assert state["momentum"]["0.weight"].abs().sum() > 0
        sync.load_state_dict({**state, "steps": 2})
        assert sync.step()  # the third of its interval
        sync.close()
        sync.close()


def test_the_job_s_facts_are_told_by_the_package() -> None:
    with master() as url:
        sync = IntervalSync(net(), config=settings(url, 4, device_count=1))
        [member] = solo.members()
        assert member.node_rank == 4 and member.slot == 0 and member.device_count == 1
        assert solo.version() == 0 and solo.data_rank() == 0 and solo.data_world_size() == 1
        assert sync.step() and solo.version() == 1
        sync.close()


def test_a_model_lives_no_longer_than_the_script_wants() -> None:
    with master() as url:
        module = net()
        sync = IntervalSync(module, config=settings(url, 0))
        sync.step()
        sync.close()
        assert solo.version() == 1
        alive = weakref.ref(module)
        del module, sync
        gc.collect()
        assert alive() is None
        assert solo.version() == 0 and solo.members() == ()


@pytest.mark.parametrize(
    "reason", ["\u00e9" * 199, "x" + "\u00e9" * 199, "a zero\0", "half \udcff"]
)
def test_a_node_leaves_with_any_reason_and_the_master_s_table_can_be_read(reason: str) -> None:
    with master(linger=True) as url:
        stays, goes = (IntervalSync(net(), config=settings(url, rank)) for rank in range(2))
        goes._merger.leave(finished=False, reason=reason)
        rows = _C.status(url)["members"]
        assert [row["left"][:1] for row in rows if not row["live"]] in ([reason[:1]], [])
        stays.close()


def test_closing_an_engine_twice_is_safe_and_using_it_then_an_error() -> None:
    with master() as url:
        engine = _C.Engine(master_url=url, interval="1", outer="avg", codec="fp32", versions="x")
        engine.close()
        engine.close()
        with pytest.raises(solo.Closed):
            engine.members()
