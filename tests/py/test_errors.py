"""Errors of libsolo as Python's."""

import pytest

import solo
from solo import _C, errors

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.SoloError) and kind.code
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_code_has_its_class_and_each_class_is_exported(
    kind: type[errors.SoloError],
) -> None:
    error = errors.from_code(kind.code, "what, why, fix")
    assert type(error) is kind and error.code == kind.code and str(error) == "what, why, fix"
    assert getattr(solo, kind.__name__) is kind
    assert _C.error_name(kind.code).startswith("SOLO_E")


def test_every_error_of_the_library_has_a_class() -> None:
    codes = {kind.code for kind in KINDS}
    unknown = _C.error_name(-999)
    known = [code for code in range(-64, 0) if _C.error_name(code) != unknown]
    assert codes == set(known)


def test_common_kinds_are_also_python_s_own() -> None:
    assert issubclass(errors.TimedOut, TimeoutError)
    assert issubclass(errors.InvalidArgument, ValueError)
    assert issubclass(errors.OutOfMemory, MemoryError)
    assert issubclass(errors.AuthError, PermissionError)


def test_an_unknown_code_is_still_a_solo_error() -> None:
    assert errors.from_code(-999, "text").code == -999
