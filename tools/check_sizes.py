"""Fail when a file has more than 500 lines or a function more than 60 (in tests 80); and when any
file, whatever it is, has more than a mebibyte: what programs leave behind is not kept.

    python3 tools/check_sizes.py [PATH ...]

A C function runs from a brace in the first column to the next closing one there; a table or a
type written the same way is no function. A Python one runs from its def to its last line.
Exit status 1: a fault.
"""

import ast
import pathlib
import re
import subprocess
import sys

FILE_MAX = 500
BYTES_MAX = 1 << 20
FUNCTION_MAX = 60
FUNCTION_MAX_IN_TESTS = 80  # a simulated world is one flat switch over all actions
SUFFIXES = {".c", ".h", ".cpp", ".hpp", ".py"}


def c_functions(text: str):
    name, start = "", 0
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if line == "{":
            before = " ".join(lines[max(0, number - 6) : number - 1])
            found = re.findall(r"([A-Za-z_]\w*)\s*\(", before)
            name, start = (found[-1] if found else ""), number if found else 0
        elif line.startswith("}") and start:
            yield name, number - start + 1
            start = 0


def python_functions(text: str):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body
            documented = ast.get_docstring(node) is not None
            first = body[1].lineno if documented and len(body) > 1 else node.lineno
            yield node.name, (node.end_lineno or first) - first + 1


def faults(path: pathlib.Path):
    text = path.read_text()
    count = text.count("\n")
    if count > FILE_MAX:
        yield f"{path}: {count} lines; more than {FILE_MAX} is two nouns in one file"
    functions = python_functions if path.suffix == ".py" else c_functions
    most = FUNCTION_MAX_IN_TESTS if path.parts[0] == "tests" else FUNCTION_MAX
    for name, lines in functions(text):
        if lines > most:
            yield f"{path}: {name} has {lines} lines; {most} is the most"


def main() -> int:
    named = sys.argv[1:]
    if not named:
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True
        )
        named = listed.stdout.split()
    paths = [path for n in named if (path := pathlib.Path(n)).is_file()]
    found = [f"{p}: {p.stat().st_size} bytes" for p in paths if p.stat().st_size > BYTES_MAX]
    found += [fault for path in paths if path.suffix in SUFFIXES for fault in faults(path)]
    print("\n".join(found) or "sizes: ok")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
