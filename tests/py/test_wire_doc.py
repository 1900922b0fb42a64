"""docs/wire.md says what the code sends."""

from __future__ import annotations

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).parents[2]
DOC = (ROOT / "docs" / "wire.md").read_text()


def fields_in_code() -> dict[str, tuple[int, int, list[tuple[str, str]]]]:
    """Message name -> (type, limit, fields), as the message code names them."""
    program = ROOT / "build" / "release" / "tests" / "test_msg"
    command: list[str | pathlib.Path] = [program, "every_message_can_name_its_fields"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    messages: dict[str, tuple[int, int, list[tuple[str, str]]]] = {}
    for line in done.stdout.splitlines():
        name, first, second = line.split()
        if first.isdigit():
            messages[name] = (int(first), int(second), [])
        else:
            messages[name][2].append((first, second))
    return messages


def fields_in_doc() -> dict[str, tuple[int, int, list[tuple[str, str]]]]:
    messages = {}
    for part in re.split(r"^### ", DOC, flags=re.MULTILINE)[1:]:
        title, text = part.split("\n", 1)
        number, name = title.split()
        limit = re.search(r"at most (\d+) bytes", text)
        assert limit, f"{name} has no limit"
        rows = re.findall(r"^\| (\w+) \| (\w+) \|$", text, flags=re.MULTILINE)
        messages[name] = (int(number), int(limit[1]), [row for row in rows if row[0] != "field"])
    return messages


def test_every_message_and_field_is_in_the_document_in_order() -> None:
    code, doc = fields_in_code(), fields_in_doc()
    assert list(doc) == list(code)
    for name, expected in code.items():
        assert doc[name] == expected, name


def test_the_header_table_is_what_the_header_code_writes() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \|", DOC, flags=re.MULTILINE)
    at = 0
    for offset, size, name in rows:
        assert int(offset) == at, name
        at += int(size)
    source = (ROOT / "csrc" / "wire" / "frame.c").read_text()
    encode = source.split("void frame_encode(")[1].split("\n}")[0]
    widths = [int(width) for width in re.findall(r"write_uint\(&writer, .*?, (\d)\);", encode)]
    assert [int(size) for _, size, _ in rows] == widths
    header = (ROOT / "csrc" / "wire" / "frame.h").read_text()
    assert re.search(r"FRAME_HEADER_BYTES\s+" + str(at) + "u", header)


def test_every_data_frame_has_its_number_in_the_document() -> None:
    header = (ROOT / "csrc" / "wire" / "frame.h").read_text()
    block = header.split("enum frame_type {")[1].split("}")[0]
    types = dict(re.findall(r"FRAME_(\w+) = (\d+),", block))
    types.pop("TYPE_COUNT")
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", DOC, flags=re.MULTILINE)
    documented = {name: number for number, name in rows}
    documented |= {name: str(row[0]) for name, row in fields_in_doc().items()}
    assert documented == types
