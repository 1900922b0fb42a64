"""Fail when a source file includes a room above its own, or a pure room includes the system.

    python3 check_layers.py csrc [launcher benchmarks ...]

A room is a folder of csrc. Includes between rooms, and inside one, are written with the
room's name ("base/err.h"); the headers of csrc/include are the public ones. A pure room may
include only the system headers listed here, so that it cannot do I/O, read a clock or start
a thread. Folders after csrc may include them and their own files. Exit status 1: a fault.
"""

import pathlib
import re
import sys

MAY_INCLUDE = {
    "include": set(),
    "base": set(),
    "kernels": {"base"},
    "codec": {"base", "kernels"},
    "wire": {"base"},
    "protocol": {"base", "wire"},
    "ckpt": {"base"},
    "os": {"base", "wire"},
    "comm": {"base", "kernels", "wire", "os"},
    "node": {"base", "kernels", "codec", "wire", "protocol", "ckpt", "os", "comm"},
    "py": set(),
    "c10d": set(),
}
LANGUAGE = {
    "assert.h", "inttypes.h", "limits.h", "math.h", "stdarg.h", "stdatomic.h", "stdbool.h",
    "stddef.h", "stdint.h", "string.h",
}  # fmt: skip
PURE = {  # room -> system headers it may include
    "base": LANGUAGE | {"stdlib.h", "stdio.h", "errno.h", "pthread.h"},  # texts; the log's mutex
    "kernels": LANGUAGE | {"stdlib.h", "arm_acle.h", "arm_neon.h", "immintrin.h", "sys/auxv.h"},
    "codec": LANGUAGE | {"stdlib.h"},
    "wire": LANGUAGE | {"stdlib.h", "arm_acle.h", "immintrin.h"},
    "protocol": LANGUAGE,  # no stdlib.h: no malloc
    "ckpt": LANGUAGE | {"stdlib.h"},
}
PUBLIC = {"solo.h", "solo_group.h", "solo_ckpt.h"}  # the one door for the outside
INCLUDE = re.compile(r'\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def includes(path: pathlib.Path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := INCLUDE.match(line):
            yield f"{path}:{number}", *match.groups()


def faults_in_csrc(root: pathlib.Path):
    for path in sorted(root.glob("*/**/*.[ch]*")):
        room = path.relative_to(root).parts[0]
        if room not in MAY_INCLUDE:
            yield f"{path}: room {room} has no row in MAY_INCLUDE"
            continue
        for where, ours, system in includes(path):
            if ours:
                target = ours.split("/")[0].removesuffix(".h")
                if ours in PUBLIC:
                    continue
                if target != room and target not in MAY_INCLUDE[room]:
                    yield f"{where}: {room} must not include {ours}"
            elif room in PURE and system not in PURE[room]:
                yield f"{where}: {room} is pure and must not include <{system}>"


def is_own(root: pathlib.Path, path: pathlib.Path, include: str) -> bool:
    candidates = (path.parent / include, root.parent / include)
    return any(c.exists() and c.resolve().is_relative_to(root.resolve()) for c in candidates)


def faults_outside(root: pathlib.Path):
    for path in sorted(root.glob("**/*.[ch]*")):
        for where, ours, _ in includes(path):
            if ours and ours not in PUBLIC and not is_own(root, path, ours):
                yield f"{where}: {root.name} may include solo.h and its own files, not {ours}"


def main() -> int:
    roots = [pathlib.Path(argument) for argument in sys.argv[1:]]
    if not roots or not all(root.is_dir() for root in roots):
        print("usage: check_layers.py csrc [folder ...]", file=sys.stderr)
        return 2
    found = [*faults_in_csrc(roots[0])]
    for root in roots[1:]:
        found += faults_outside(root)
    print("\n".join(found) or "layers: ok")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
