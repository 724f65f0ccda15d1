"""Fixtures of the tests of the dashboard: a ledger with a day of work, and browsers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.support import StoreAddress
from tests.pages.browser import Browser, mounted
from tests.pages.sample import fill, open_sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.pages.sample import Sample

JOBS_PER_HOUR = 2


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
    path, named = filled
    shutil.copy(path, tmp_path / "ledger.db")
    sample = open_sample(StoreAddress(f"sqlite:///{tmp_path / 'ledger.db'}", "unused"))
    yield replace(sample, named=dict(named))
    sample.close()


@pytest.fixture
def any_sample(store_address: StoreAddress) -> Iterator[Sample]:
    """Return the day of work on a store of each kind."""
    sample = fill(open_sample(store_address), jobs_per_hour=JOBS_PER_HOUR)
    yield sample
    sample.close()


@pytest.fixture
def empty(store_address: StoreAddress) -> Iterator[Sample]:
    """Return the app without jobs, on a store of each kind and on its real clock."""
    sample = open_sample(store_address)
    yield sample
    sample.close()


@pytest.fixture
def browse(sample: Sample) -> Callable[..., Browser]:
    """Return a way to open the dashboard of the sample in a new browser, as an editor unless options say otherwise."""

    def open_browser(**options: Any) -> Browser:
        return Browser(mounted(sample.app, **({"authorize": lambda _request: ("ann", "edit")} | options)))

    return open_browser


@pytest.fixture
def browser(browse: Callable[..., Browser]) -> Browser:
    """Return a browser of an editor."""
    return browse()
