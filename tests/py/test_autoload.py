"""import torch, with solo installed: works whatever becomes of solo, and costs next to nothing."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import solo

CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("SOLO_", "LOCAL_"))}


def python(code: str, path: pathlib.Path | None = None, **env: str) -> str:
    first = {"PYTHONPATH": str(path)} if path else {}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**CLEAN, **first, **env},
        cwd=path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_import_torch_alone_registers_the_backend_and_loads_nothing_else() -> None:
    said = python(
        "import sys, torch\n"
        "print('solo' in torch.distributed.Backend.backend_list)\n"
        "print(sorted(m for m in sys.modules if m.startswith('solo')))"
    )
    assert said.splitlines() == ["True", "['solo', 'solo.autoload']"]


def test_import_solo_alone_does_not_import_torch() -> None:
    assert python("import sys, solo; print('torch' in sys.modules, dir(solo) != [])") == (
        "False True\n"
    )


def test_both_import_orders_work() -> None:
    python("import solo, torch; solo.IntervalSync")
    python("import torch, solo; solo.IntervalSync")


@pytest.mark.parametrize("damage", ["corrupt", "missing"])
def test_import_torch_works_with_a_broken_native_module(
    damage: str, tmp_path: pathlib.Path
) -> None:
    package = tmp_path / "solo"
    shutil.copytree(pathlib.Path(solo.__file__).parent, package)
    for library in package.glob("*.so"):
        library.unlink()
        if damage == "corrupt":
            library.write_bytes(b"\x7fELF" + bytes(100))
    said = python("import torch, solo; print(torch.ones(1).item(), solo.__file__)", tmp_path)
    assert said == f"1.0 {package / '__init__.py'}\n"


@pytest.mark.parametrize("content", [b"", b"\x7fELF" + bytes(100)])
def test_a_rank_under_solo_ends_if_the_native_module_is_broken_and_never_trains_alone(
    content: bytes, tmp_path: pathlib.Path
) -> None:
    package = tmp_path / "solo"
    shutil.copytree(pathlib.Path(solo.__file__).parent, package)
    (library,) = package.glob("_C.*so")
    library.unlink()
    library.write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", "import torch; print('trains alone')"],
        env={**CLEAN, **RANK, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 78
    assert "solo: error: " in done.stderr and "_C" in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


def test_import_torch_works_with_a_broken_package(tmp_path: pathlib.Path) -> None:
    package = tmp_path / "solo"
    shutil.copytree(pathlib.Path(solo.__file__).parent, package)
    text = (package / "autoload.py").read_text()
    (package / "autoload.py").write_text(
        text.replace("dist.Backend.register_backend(", "dist.Backend.gone(")
    )
    said = python("import torch; print(torch.ones(1).item())", tmp_path)
    assert "solo's backend is not available" in said and "1.0\n" in said


HOOKED = "import torch; print('hooked', torch.optim.Optimizer.__init__.__module__, end=' ')\n" + (
    "import sys; print('solo.ddp' in sys.modules)"
)
RANK = {"SOLO_ENABLE": "1", "LOCAL_RANK": "0", "SOLO_MASTER_URL": "tcp://127.0.0.1:1"}


def test_hooks_are_installed_in_a_rank_only() -> None:
    assert python(HOOKED).endswith("False\n")
    assert python(HOOKED, SOLO_ENABLE="1").endswith("False\n")
    assert "True\n" in python(HOOKED, **RANK)


def test_solo_disable_turns_all_of_it_off() -> None:
    assert python(HOOKED, SOLO_DISABLE="1", **RANK).endswith("False\n")


def test_a_script_s_own_subprocess_is_no_rank() -> None:
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOOKED!r}])"
    said = python(f"import torch; {inner}", **RANK)
    assert "False\n" in said and "True\n" not in said


def test_spawned_workers_of_a_dataloader_are_no_ranks(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\n"
        "from torch.utils.data import DataLoader\n"
        "class Data:\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, i): return int('solo.ddp' in sys.modules)\n"
        "if __name__ == '__main__':\n"
        "    for kind in ('spawn', 'forkserver'):\n"
        "        loader = DataLoader(Data(), num_workers=1, multiprocessing_context=kind)\n"
        "        print(kind, [int(b) for b in loader], 'solo.ddp' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, script], env={**CLEAN, **RANK}, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "spawn [0, 0] True\nforkserver [0, 0] True\n", done.stderr


def test_a_wrong_setting_ends_the_rank_with_the_reason() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import torch"],
        env={**CLEAN, **RANK, "SOLO_SYNC_INTERVAL": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 78
    assert "sync interval '0'" in done.stderr and "Traceback" not in done.stderr
