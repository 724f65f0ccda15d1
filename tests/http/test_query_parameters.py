"""Query parameters: a route takes those that it declares, each single one once, and refuses all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Query
from fastapi.security import APIKeyQuery
from starlette.testclient import TestClient

from onejob.api import create_app, router
from onejob.api.api_keys import KeyFile, Role
from tests.http.conftest import LOCAL, problem
from tests.http.test_entry_points import ROUTES, asked
from tests.http.test_keys import bearer

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery

    from tests.http.conftest import Shop


def tenant(tenant: str, tag: Annotated[list[str] | None, Query()] = None) -> list[str]:
    """Read two parameters, one of them repeated, as a check of an app may."""
    return [tenant, *(tag or ())]


def check(found: Annotated[list[str], Depends(tenant)], key: Annotated[str, Depends(APIKeyQuery(name="key"))]) -> None:
    """Check a request as an app may: by parameters, and by a key in the address."""
    assert (found, key) == (["a", "x", "y"], "k")


def errors(answer: Any) -> list[tuple[list[str], str]]:
    """Return where and why a request was refused as one that does not fit."""
    return [(each["at"], each["why"]) for each in problem(answer, 422, "invalid-request")["errors"]]


@pytest.mark.parametrize("route", ROUTES)
def test_an_undeclared_parameter_is_refused(shop: Shop, route: tuple[str, str]) -> None:
    """Every route refuses a query parameter that it does not declare, by its name."""
    ((at, why),) = errors(asked(shop.client, route, params={"zzz": "1"}))
    assert at == ["query", "zzz"]
    assert why.startswith("unknown query parameter 'zzz': this path takes ")


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("/jobs?stat=failed", "state"),
        ("/jobs?Limit=5", "limit"),
        ("/jobs?task=a&cusror=x", "cursor"),
        ("/dead?err=x", "error"),
        ("/readyz?worker=1", "workers"),
    ],
)
def test_the_nearest_name_is_suggested(shop: Shop, path: str, nearest: str) -> None:
    """The refusal of a mistyped parameter suggests the declared one that is most like it."""
    ((_, why),) = errors(shop.client.get(path))
    assert why.endswith(f"did you mean {nearest!r}?")


def test_a_mistyped_option_of_a_change_changes_nothing(shop: Shop) -> None:
    """A cancellation with a mistyped option is refused before the job is canceled."""
    job_id = shop.post("invoice", {"order_id": 1}).json()["job"]["id"]
    ((at, _),) = errors(shop.client.post(f"/jobs/{job_id}/cancel?forced=true", json={}))
    assert (at, shop.ledger.get(job_id).state) == (["query", "forced"], "queued")


def test_a_single_parameter_is_given_once(shop: Shop) -> None:
    """A repeated parameter is refused, since two readers could take another of its values; `state` may be repeated."""
    ((at, why),) = errors(shop.client.get("/jobs?limit=1&limit=2"))
    assert (at, "given 2 times" in why) == (["query", "limit"], True)
    assert shop.client.get("/jobs?state=failed&state=queued").status_code == 200


def test_the_refusal_of_many_names_is_small(shop: Shop) -> None:
    """However many and long the unknown names are, the answer is short."""
    query = "&".join(f"{number}{'x' * 1000}" + "=" for number in range(50))
    assert len(shop.client.get(f"/jobs?{query}").content) < 20_000


def test_a_stranger_learns_no_names(celery_app: Celery, tmp_path: Path) -> None:
    """A request without a key is refused for that, whatever its parameters are."""
    text = KeyFile(tmp_path / "keys.json").add("reader", Role.READ)
    client = TestClient(create_app(celery_app, keys=tmp_path / "keys.json"), **LOCAL)
    problem(client.get("/jobs?stat=failed"), 401, "unauthorized")
    problem(client.get("/jobs?stat=failed", headers=bearer(text)), 422, "invalid-request")


def test_the_parameters_of_the_apps_own_checks_are_declared(celery_app: Celery) -> None:
    """Mounted in an app, a route takes what the app's dependencies declare, too, and refuses the rest."""
    app = FastAPI()
    app.include_router(router(celery_app, prefix="/v1"), dependencies=[Depends(check)])
    client = TestClient(app)
    assert client.get("/v1/jobs?tenant=a&tag=x&tag=y&key=k&limit=1").status_code == 200
    ((at, _),) = errors(client.get("/v1/jobs?tenant=a&tag=x&tag=y&key=k&limits=1"))
    assert at == ["query", "limits"]
