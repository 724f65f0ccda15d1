"""The fixtures of the tests of the admin: a shop with a day of work in its ledger."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from tests.conftest import make_ledger
from tests.django.admin.staff import Person, person, project_on, serving_project
from tests.django.project import Project
from tests.pages.sample import Sample, fill, open_sample
from tests.stores.support import StoreAddress

DATABASE = "/14"
"""The database of Redis that these tests have to themselves."""


@dataclass
class Shop:
    project: Project
    sample: Sample
    url: str

    def login(self, name: str) -> AbstractContextManager[Person]:
        return person(self.url, name)

    def job(self, name: str) -> str:
        return self.sample.submit("shop.study_plan", "ann@example.org", project=f"{name}-{secrets.token_hex(4)}").job.id


@pytest.fixture(scope="session")
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreAddress]:
    """Return where an empty ledger is: on SQLite, unless a test is for every store."""
    name, kind = f"admin_{secrets.token_hex(4)}", getattr(request, "param", "sqlite")
    if kind == "sqlite":
        yield StoreAddress(f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}", "unused")
        return
    if kind == "postgresql":
        url = request.getfixturevalue("postgres_server").url
        make_ledger(url, name)
        yield StoreAddress(url, name)
        return
    url = request.getfixturevalue("redis_server").url.removesuffix("/0") + DATABASE
    yield StoreAddress(url, name)
    with redis.Redis.from_url(url) as client:
        client.flushdb()


@pytest.fixture(scope="session")
def shop(address: StoreAddress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    sample: Any = fill(open_sample(address), jobs_per_hour=1)
    project = project_on(address, folder)
    with serving_project(project, folder) as url:
        yield Shop(project, sample, url)
    sample.close()
