"""Builds libsolo and solorun with make, then the two native modules against them.

solo/_C: CPython's C API, no torch, one binary for every CPython from 3.11 on.
solo/_c10d: the c10d adapter, bound to the torch that is installed while building.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).parent.resolve()
FLAVOR = os.environ.get("SOLO_FLAVOR", "release")  # of the Makefile; tsan: make tsan-adapter
BUILD = f"build/{FLAVOR}"
SANITIZE = ["-g", "-fsanitize=thread"] if FLAVOR == "tsan" else []
COMPILE = ["-O2", "-fvisibility=hidden", "-Wall", "-Wextra", *SANITIZE]
SHARE = (
    "share/man/man1/solorun.1",
    "share/zsh/site-functions/_solorun",
    "share/bash-completion/completions/solorun",
    "share/fish/vendor_completions.d/solorun.fish",
)


def torch_extension() -> Extension:
    try:
        import torch
        from torch.utils import cpp_extension
    except ImportError:
        sys.exit(
            "solo builds against the torch you have: pip install torch, "
            "then pip install --no-build-isolation ."
        )
    major, minor = torch.__version__.split(".")[:2]
    return Extension(
        "solo._c10d",
        sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc/c10d").glob("*.cpp")),
        include_dirs=["csrc", "csrc/include"],
        library_dirs=cpp_extension.library_paths(),
        libraries=["c10", "torch_cpu", "torch", "crypto"],
        define_macros=[("SOLO_TORCH_MAJOR", major), ("SOLO_TORCH_MINOR", minor)],
        extra_compile_args=[
            "-std=c++20",
            *COMPILE,
            *(f"-isystem{path}" for path in cpp_extension.include_paths()),  # no warnings of theirs
        ],
        extra_link_args=SANITIZE,
        extra_objects=[f"{BUILD}/libsolo.a"],
        language="c++",
    )


class Build(build_ext):
    def build_extensions(self) -> None:
        jobs = f"-j{os.cpu_count() or 1}"
        subprocess.run(
            ["make", "-s", jobs, f"FLAVOR={FLAVOR}", "lib", "launcher"], cwd=ROOT, check=True
        )
        self._compile_files_at_once()
        super().build_extensions()

    def _compile_files_at_once(self) -> None:
        """As many as there are cores: a file that sees torch takes ten seconds or more."""
        one_by_one = self.compiler.compile

        def compile_all(sources: list[str], *rest: Any, **named: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda source: one_by_one([source], *rest, **named), sources)
                return [name for names in made for name in names]

        self.compiler.compile = compile_all


setup(
    ext_modules=[
        Extension(
            "solo._C",
            sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc/py").glob("*.c")),
            include_dirs=["csrc", "csrc/include"],
            libraries=["crypto"],
            define_macros=[("Py_LIMITED_API", "0x030b0000")],
            extra_compile_args=["-std=c11", *COMPILE],
            extra_link_args=SANITIZE,
            extra_objects=[f"{BUILD}/libsolo.a"],
            depends=[f"{BUILD}/libsolo.a"],
            py_limited_api=True,
        ),
        torch_extension(),
    ],
    cmdclass={"build_ext": Build},
    data_files=[
        ("bin", [f"{BUILD}/solorun"]),
        *((str(pathlib.PurePath(path).parent), [f"{BUILD}/{path}"]) for path in SHARE),
    ],
)
