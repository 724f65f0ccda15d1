"""What the command palette offers besides the pages: the tasks that are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onejob.pages.rendering import Page
from onejob.pages.views.view import View

if TYPE_CHECKING:
    from onejob.pages.site import Site, Visit


def _build(site: Site, _visit: Visit) -> Page:
    return Page(template="palette.html", title="Tasks", data={"tasks": sorted(site.tasks)})


PALETTE = View("palette", "/palette", _build)
