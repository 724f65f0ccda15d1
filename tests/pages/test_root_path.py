"""The server and its pages below a path: of a proxy, of a mount, of an app that knows its own path."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

import onejob
from onejob.api import create_app, router
from onejob.api.api_keys import KeyFile, Role
from onejob.api.root_path import RootPath, check_root_path
from onejob.api.server import check_host
from onejob.errors import ConfigurationError
from onejob.pages.app import create_app_with_dashboard
from tests.api.conftest import LOCAL, bearer
from tests.api.serving import serving
from tests.cases import for_each
from tests.pages.browser import SAME_ORIGIN, TOKEN, HtmlPage
from tests.pages.sample import Sample
from tests.proxies import publishing

ROOT = "/jobs-ui"
BODY = {"task": "shop.study_plan", "kwargs": {"project": "below a path"}}


@contextmanager
def published(sample: Sample, keys: KeyFile, *, removes_path: bool) -> Iterator[httpx2.Client]:
    """Serve the app as `onejob serve --root-path` does, behind a proxy; yield a client of the proxy."""
    app = RootPath(create_app_with_dashboard(sample.app, keys.path), ROOT)
    with serving(app) as served, publishing(served.url, ROOT, removes_path=removes_path) as url:
        assert httpx2.get(f"{served.url}/healthz", timeout=60).status_code == 200, "a probe knows no path of a proxy"
        with httpx2.Client(base_url=url, timeout=60) as client:
            yield client


@for_each("removes_path", [True, False])
def test_a_proxy_publishes_the_server_below_a_path(sample: Sample, keys: KeyFile, removes_path: bool) -> None:
    """Behind a proxy that removes its path, or does not, redirects, links, `Location`, cookies and OpenAPI have it."""
    text = keys.add(secrets.token_hex(4), Role.EDIT)
    with published(sample, keys, removes_path=removes_path) as client:
        for path, leads_to in (
            ("/", "/dashboard/"),
            ("/dashboard", "/dashboard/"),
            ("/dashboard/", "/dashboard/login"),
        ):
            assert client.get(ROOT + path).headers["location"] == ROOT + leads_to
        submitted = client.post(f"{ROOT}/jobs", json=BODY, headers=bearer(text))
        assert submitted.headers["location"] == f"{ROOT}/jobs/{submitted.json()['job']['id']}"
        assert client.get(submitted.headers["location"], headers=bearer(text)).status_code == 200
        document = client.get(f"{ROOT}/openapi.json", headers=bearer(text)).json()
        assert document["servers"] == [{"url": ROOT}]
        assert "/jobs" in document["paths"]
        login = client.get(f"{ROOT}/dashboard/login")
        found = TOKEN.search(login.text)
        assert found
        assert HtmlPage(login.text).forms[0].action == f"{ROOT}/dashboard/login"
        form = {"key": text, "csrf_token": found[1]}
        done = client.post(f"{ROOT}/dashboard/login", data=form, headers=SAME_ORIGIN)
        assert (done.status_code, done.headers["location"]) == (303, f"{ROOT}/dashboard/")
        cookies = [*login.headers.get_list("set-cookie"), *done.headers.get_list("set-cookie")]
        assert {f"path={ROOT}/dashboard" in cookie.lower() for cookie in cookies} == {True}
        for path in ("/", "/jobs", f"/jobs/{sample.named['failed']}", "/duplicates", "/dead"):
            page = HtmlPage(client.get(f"{ROOT}/dashboard{path}").text)
            own = [link for link in [*page.links, *(form.action for form in page.forms)] if link.startswith("/")]
            assert [link for link in own if not link.startswith(f"{ROOT}/dashboard/")] == []
            assert own
        assert client.get(f"{ROOT}/dashboard/jobs/{sample.named['failed']}").status_code == 200


def test_mounts_and_apps_with_a_path_have_it(sample: Sample) -> None:
    """`Location` has the whole path in a mounted app, and on a server with a root path, which its proxy removes."""
    outer, knowing = FastAPI(), FastAPI()
    outer.mount("/x", create_app(sample.app))
    outer.mount("/ops", onejob.dashboard(sample.app))
    knowing.include_router(router(sample.app, prefix="/v1"))
    knowing.mount("/ops", onejob.dashboard(sample.app))
    for app, root_path, sent, pages in ((outer, "", "/x", "/ops"), (knowing, "/api", "/v1", "/api/ops")):
        client, whole = TestClient(app, follow_redirects=False, root_path=root_path, **LOCAL), root_path + sent
        submitted = client.post(f"{sent}/jobs", json=BODY)
        assert submitted.headers["location"] == f"{whole}/jobs/{submitted.json()['job']['id']}"
        assert f"{pages}/jobs" in HtmlPage(client.get(f"{root_path}/ops/").text).links
    document = TestClient(outer, **LOCAL).get("/x/openapi.json").json()
    assert document["servers"] == [{"url": "/x"}]


@for_each("root_path", ["jobs-ui", "/", "/ui/", "//ui", "/a//b", "/../ui", "/ui/.", "/a b", "/ui?x", "/\N{SNOWMAN}"])
def test_a_root_path_is_a_path(root_path: str) -> None:
    """A root path begins with a slash, ends with none, and has only characters that mean themselves in a URL."""
    with pytest.raises(ConfigurationError, match="such as /jobs-ui"):
        check_root_path(root_path, FastAPI())


def test_a_root_path_is_none_of_the_server(sample: Sample) -> None:
    """A root path that begins like a path of the server is refused, and so is any on a server without keys."""
    app = create_app_with_dashboard(sample.app)
    for refused in ("/jobs", "/jobs/ui", "/dashboard", "/metrics", "/duplicates"):
        with pytest.raises(ConfigurationError, match=f"choose another one, such as /jobs-ui, or /ui{refused}"):
            check_root_path(refused, app)
    for root_path in ("/jobs-ui", "/ui/jobs", "/~kim/.jobs"):
        check_root_path(root_path, app)
    with pytest.raises(ConfigurationError, match="needs API keys"):
        check_host("127.0.0.1", None, ROOT)
