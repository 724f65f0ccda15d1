"""docs/settings.md has every setting and every option of a task, with its default."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from onejob.celery.option_names import TASK_OPTIONS
from onejob.config import NAMES, Settings
from onejob.webhooks.settings import WebhookSettings
from tests.cases import for_each
from website.navigation import DOCS

PAGE = (DOCS / "settings.md").read_text(encoding="utf-8")
ROWS = {
    name: cell
    for cells, cell in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.*?) \|", PAGE, re.MULTILINE)
    for name in re.findall(r"`(\w+)`", cells)
}


def defaults() -> dict[str, Any]:
    """Return each setting with its default, where that is a plain value."""
    own = {f"onejob_{field.name}": field.default for field in fields(Settings)}
    webhooks = {f"onejob_webhook_{field.name}": field.default for field in fields(WebhookSettings)}
    return own | webhooks


def test_every_setting_is_on_the_page() -> None:
    """The page lists the settings that exist, and no other."""
    listed = {name for name in ROWS if name.startswith("onejob_")}
    assert listed == set(defaults())
    assert {f"onejob_{name}" for name in NAMES} <= listed


@for_each("name", sorted(name for name, value in defaults().items() if isinstance(value, int | float)))
def test_defaults_are_on_the_page(name: str) -> None:
    """A number or a truth value that a setting has by default stands beside its name."""
    value = defaults()[name]
    expected = str(value) if isinstance(value, bool) else f"{value:g}" if value < 1e6 else str(int(value))
    assert expected in ROWS[name].replace(",", "")


def test_every_option_of_a_task_is_on_the_page() -> None:
    """The page lists the options of a task that exist, and no other."""
    assert {name for name in ROWS if not name.startswith("onejob_") and name.islower()} == set(TASK_OPTIONS)
