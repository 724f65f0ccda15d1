"""The fixtures of the tests in a real browser: the demo, a dashboard, and pages whose console messages are recorded."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from onejob.demo.supervisor import Stack
from tests.browser.support import PATIENCE, PREFIX, Dashboard, Demo, Tabs, sample_on, serving_dashboard
from tests.pages.sample import Sample, copied_sample
from tests.services import chromium_binary
from tests.stores.support import StoreAddress

OPTIONS = """--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync""".split()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    binary = chromium_binary()
    with sync_playwright() as playwright:
        expect.set_options(timeout=PATIENCE * 1000)
        browser = playwright.chromium.launch(executable_path=binary, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def context(browser: Browser) -> BrowserContext:
    """Return the context that pages share which are opened without options: to make one takes as long as two pages."""
    return browser.new_context()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """Return the demo with all its processes, on a provider that is quick unless it is held."""
    documents = tmp_path_factory.mktemp("documents") / "texts"
    shutil.copytree(str(files("onejob.demo") / "texts"), documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONEJOB_DEMO_LATENCY", "0.05")
        stack = Stack(Path(tempfile.mkdtemp(prefix="onejob-demo-")), str(documents), 0, in_memory=False)
        try:
            yield Demo(stack, documents)
        finally:
            stack.children.close()


@pytest.fixture
def demo(stack: Demo) -> Iterator[Demo]:
    """Return the demo, at rest before and after."""
    yield stack
    stack.rest()


@pytest.fixture
def project() -> str:
    return f"plan-{secrets.token_hex(3)}"


@pytest.fixture
def expected() -> list[str]:
    """Return the patterns of allowed console messages; a test adds those that it provokes."""
    return []


@pytest.fixture
def tabs(context: BrowserContext, expected: list[str]) -> Iterator[Tabs]:
    """Return a way to open pages. At the end there may be no unexpected console messages."""
    tabs = Tabs(context, expected)
    yield tabs
    tabs.close()
    assert tabs.complaints() == []


@pytest.fixture
def visit(tabs: Tabs, demo: Demo) -> Callable[..., Page]:
    return lambda project, **options: tabs.open(f"{demo.api.url}?{urlencode({'project': project})}", **options)


@pytest.fixture(scope="session")
def day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return a SQLite file with a little work of a day, and its named jobs."""
    path = tmp_path_factory.mktemp("day") / "ledger.db"
    with sample_on(StoreAddress(f"sqlite:///{path}", "unused")) as sample:
        return path, sample.named


@pytest.fixture
def sample(day: tuple[Path, dict[str, str]], tmp_path: Path) -> Iterator[Sample]:
    with copied_sample(*day, tmp_path / "ledger.db") as sample:
        yield sample


@pytest.fixture
def served(sample: Sample, tabs: Tabs) -> Iterator[Dashboard]:
    with serving_dashboard(sample, PREFIX) as served:
        yield served
        tabs.close()  # before the server, which open pages would miss
