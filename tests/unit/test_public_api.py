"""The names of the package."""

from __future__ import annotations

import onejob


def test_dir_is_the_public_api() -> None:
    """`dir(onejob)` lists exactly the public names, sorted, and each of them exists."""
    assert dir(onejob) == sorted(onejob.__all__)
    assert [name for name in dir(onejob) if not hasattr(onejob, name)] == []
