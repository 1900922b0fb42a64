"""The c10d adapter under ThreadSanitizer: what the threads of a script may do at once.

    make tsan-adapter

builds ``_C`` and ``_c10d`` with ``-fsanitize=thread`` into build/tsan/py and runs this, which
starts two ranks of itself. Python and torch are not instrumented: what they do to each other is
ignored, what the adapter or libsolo does is not (a counter that is raised without a lock in
``SoloWork::complete`` is told at once).
"""

from __future__ import annotations

import datetime
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "build" / "tsan" / "py"
OPTIONS = "ignore_noninstrumented_modules=1 second_deadlock_stack=1 exitcode=66"
LIMIT_S = 300


def run_rank(rank: int, store: str) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "solo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=60),
    )
    ours = [dist.new_group([0, 1]) for _ in range(4)]

    def sync() -> None:
        for i in range(30):
            tensor = torch.full((1000 * (i % 5 + 1),), float(rank + 1))
            dist.all_reduce(tensor, group=ours[0])
            assert tensor[0] == 3

    def later() -> None:
        for _ in range(10):
            tensors = [torch.full((500,), float(rank + 1)) for _ in range(4)]
            works = [dist.all_reduce(t, group=ours[1], async_op=True) for t in tensors]
            futures = [work.get_future().then(lambda f: f.value()[0].sum()) for work in works]
            for work in works:
                work.wait()
            assert all(future.wait() == 1500 for future in futures)

    def looked_at() -> None:
        for _ in range(10):
            parts = [torch.empty(300) for _ in range(2)]
            mine = torch.full((300,), float(rank))
            work = dist.all_gather(parts, mine, group=ours[2], async_op=True)
            while not work.is_completed():
                time.sleep(0)
            work.wait()
            assert parts[1][0] == 1
            if rank == 0:
                dist.send(torch.ones(100), 1, group=ours[2])
            else:
                dist.recv(torch.empty(100), 0, group=ours[2])

    threads = [threading.Thread(target=body) for body in (sync, later, looked_at)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if rank == 0:  # what the other never enters is aborted by another thread
        aborted: list[str] = []

        def stuck() -> None:
            try:
                dist.all_reduce(torch.ones(10), group=ours[3])
            except RuntimeError as error:
                aborted.append(str(error))

        waits = threading.Thread(target=stuck)
        waits.start()
        time.sleep(0.3)
        ours[3]._get_backend(torch.device("cpu")).abort()
        waits.join()
        assert aborted and "abort" in aborted[0], aborted
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    library = subprocess.run(
        ["gcc", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    env = {**os.environ, "LD_PRELOAD": library, "TSAN_OPTIONS": OPTIONS, "PYTHONPATH": str(PACKAGE)}
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen([sys.executable, __file__, str(rank), f"{folder}/store"], env=env)
            for rank in range(2)
        ]
        codes = []
        for process in ranks:
            try:
                codes.append(process.wait(LIMIT_S))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(124)
    print("tsan-adapter: clean" if codes == [0, 0] else f"tsan-adapter: the ranks end with {codes}")
    return max(codes)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run_rank(int(sys.argv[1]), sys.argv[2])
    else:
        sys.exit(main())
