"""A person uses the dashboard behind a proxy that publishes it below a path."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import expect

from onejob.api.api_keys import KeyFile, Role
from onejob.api.root_path import RootPath
from onejob.pages.app import create_app_with_dashboard
from tests.api.serving import serving
from tests.browser.support import Dashboard, Tabs, marked
from tests.proxies import publishing
from tests.tiers import deep

ROOT = "/jobs-ui"


@deep
def test_the_dashboard_works_below_the_path_of_a_proxy(tabs: Tabs, served: Dashboard, tmp_path: Path) -> None:
    """Login, navigation, an action, updates and the logout work behind a proxy that removes its path from requests."""
    sample, file = served.sample, KeyFile(tmp_path / "keys.json")
    text = file.add("kim", Role.EDIT)
    app = create_app_with_dashboard(sample.app, file.path)
    with serving(RootPath(app, ROOT)) as server, publishing(server.url, ROOT, removes_path=True) as url:
        page = tabs.open(f"{url}{ROOT}/")
        page.get_by_label("API key").fill(text)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator(".notice")).to_have_text("You are logged in as kim.")
        expect(page).to_have_url(f"{url}{ROOT}/dashboard/")
        page.get_by_role("link", name="Jobs", exact=True).first.click()
        expect(page).to_have_url(f"{url}{ROOT}/dashboard/jobs")
        is_same = marked(page)
        job_id = sample.submit("shop.study_plan", "kim", project="below a path").job.id
        row = page.locator(f'[id="row-{job_id}"]')
        expect(row).to_contain_text("queued")
        assert is_same(), "it was updated by the stream"
        row.get_by_role("link").first.click()
        expect(page).to_have_url(f"{url}{ROOT}/dashboard/jobs/{job_id}")
        page.get_by_role("button", name=re.compile("^Cancel")).first.click()
        expect(page.locator(".notice")).to_contain_text("canceled")
        page.get_by_role("button", name=re.compile("^Log out")).click()
        expect(page).to_have_url(f"{url}{ROOT}/dashboard/login")
        app.state.closing.set()
