"""Fixtures of the tests of the dashboard: a ledger with a day of work, and browsers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from onejob.api.api_keys import KeyFile, Role
from onejob.pages import context
from tests.pages.browser import Browser, browser_of
from tests.pages.sample import Sample, copied_sample, fill, open_sample
from tests.stores.support import StoreAddress

JOBS_PER_HOUR = 2


@pytest.fixture(autouse=True)
def fresh_stats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache no statistics, however long a busy machine takes to read them."""
    monkeypatch.setattr(context, "STATS_COST_FACTOR", 0.0)


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return a SQLite file with the day of work, and its named jobs: to copy it is quicker than to fill another one."""
    path = tmp_path_factory.mktemp("filled") / "ledger.db"
    sample = fill(open_sample(StoreAddress(f"sqlite:///{path}", "unused")), jobs_per_hour=JOBS_PER_HOUR)
    sample.close()
    return path, sample.named


@pytest.fixture
def sample(filled: tuple[Path, dict[str, str]], tmp_path: Path) -> Iterator[Sample]:
    """Return the day of work in a SQLite file of this test."""
    with copied_sample(*filled, tmp_path / "ledger.db") as sample:
        yield sample


@pytest.fixture
def any_sample(store_address: StoreAddress) -> Iterator[Sample]:
    """Return the day of work on any store: see `on_every_store`."""
    sample = fill(open_sample(store_address), jobs_per_hour=JOBS_PER_HOUR)
    yield sample
    sample.close()


@pytest.fixture
def browse(sample: Sample) -> Callable[..., Browser]:
    """Return a way to open the dashboard of the sample in a new browser, as an editor unless options say otherwise."""
    return partial(browser_of, sample)


@pytest.fixture
def browser(sample: Sample) -> Browser:
    return browser_of(sample)


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    """Return a key file, which is never empty."""
    file = KeyFile(tmp_path / "keys.json")
    file.add("other", Role.READ)
    return file
