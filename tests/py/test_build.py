"""What the build promises to whoever installs it."""

import solo
from solo import _C


def test_the_library_and_the_package_have_one_version() -> None:
    assert _C.version() == solo.__version__
