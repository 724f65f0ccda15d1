"""Makes the screenshots of the documentation, in a real browser, of the sample ledger."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Literal

from fastapi import FastAPI
from playwright.sync_api import ViewportSize, sync_playwright

import onejob
from tests.api.serving import serving
from tests.pages.sample import fill, open_sample
from tests.services import chromium_binary
from tests.stores.support import StoreAddress

SIZE: ViewportSize = {"width": 1280, "height": 860}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def take(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as ledger:
        sample = fill(open_sample(StoreAddress(f"sqlite:///{ledger}/ledger.db", "unused")))
        web = FastAPI()
        web.mount("/onejob", onejob.dashboard(sample.app, authorize=lambda _request: ("ann", "operate")))
        paths = {
            "overview": "/", "jobs": "/jobs", "job": f"/jobs/{sample.named['crashed']}",
            "duplicates": "/duplicates?by=submitter", "dead-letters": "/dead",
        }  # fmt: skip
        with serving(web) as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium_binary(), args=["--no-sandbox", "--disable-gpu"]
            )
            for name, path in paths.items():
                for scheme in SCHEMES:
                    sample.heartbeats()
                    page = browser.new_page(viewport=SIZE, color_scheme=scheme, timezone_id="Europe/Berlin")
                    page.goto(f"{server.url}/onejob{path}")
                    page.get_by_text("Updated").wait_for()
                    page.screenshot(path=folder / f"dashboard-{name}-{scheme}.png")
                    page.close()
            browser.close()
        sample.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]))
