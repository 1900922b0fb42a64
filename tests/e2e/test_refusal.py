"""Two hosts with a long line between them that call different things: both learn of both."""

import sys

import pytest

from benchmarks import netlab

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(netlab.why_not() is not None, reason=str(netlab.why_not())),
]

RANK = """
import sys, torch
import torch.distributed as dist
rank, wrong, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("solo", init_method=f"tcp://{store}:29600", rank=rank, world_size=2)
dist.barrier()
try:
    if rank == wrong:
        dist.all_reduce(torch.ones(10))
    else:
        dist.broadcast(torch.ones(10), 0)
    dist.barrier()
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize("wrong", [0, 1], ids=["root-differs", "other-differs"])
def test_a_broadcast_that_meets_another_call_is_told_on_both_hosts(wrong: int) -> None:
    with netlab.Lab(2, rate_mbit=100, delay_ms=25) as lab:
        ranks = [
            lab.popen(
                rank,
                [sys.executable, "-c", RANK, str(rank), str(wrong), lab.address(0)],
                env={"PYTHONWARNINGS": "ignore", "GLOO_SOCKET_IFNAME": "solo0"},
                stdout=-1,
            )
            for rank in range(2)
        ]
        for rank in ranks:
            shown, _ = rank.communicate(timeout=60)
            assert rank.returncode == 0
            for word in ("rank 0 call", "rank 1 call", "broadcast #2 of 10", "all_reduce #2 of 10"):
                assert word in shown
