"""What every page declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from onejob.api.api_keys import Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.pages.rendering import Page, Redirect
    from onejob.pages.site import Site, Visit


class View(NamedTuple):
    """A page: its name, its path, the function that builds it, and the role that may see it."""

    name: str
    path: str
    build: Callable[[Site, Visit], Page | Redirect]
    role: Role = Role.READ
