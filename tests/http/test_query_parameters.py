"""Query parameters: undeclared ones are refused, and repeated ones unless they are lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Query
from fastapi.security import APIKeyQuery
from starlette.testclient import TestClient

from onejob.api import create_app, query_parameters, router
from onejob.api.api_keys import KeyFile, Role
from tests.http.conftest import LOCAL, problem
from tests.http.test_api_keys import bearer
from tests.http.test_entry_points import ROUTES, call_route

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery

    from tests.http.conftest import Shop


def tenant(tenant: str, tag: Annotated[list[str] | None, Query()] = None) -> list[str]:
    """Read two parameters, one of them a list, as a dependency of an app."""
    return [tenant, *(tag or ())]


def check(found: Annotated[list[str], Depends(tenant)], key: Annotated[str, Depends(APIKeyQuery(name="key"))]) -> None:
    """Check a request as a dependency of an app: by parameters, and by an API key in the query."""
    assert (found, key) == (["a", "x", "y"], "k")


def errors(response: Any) -> list[tuple[list[str], str]]:
    """Return the place and reason of each validation error."""
    return [(each["at"], each["why"]) for each in problem(response, 422, "invalid-request")["errors"]]


@pytest.mark.parametrize("route", ROUTES)
def test_an_undeclared_parameter_is_refused(shop: Shop, route: tuple[str, str]) -> None:
    """Every route refuses an undeclared query parameter, and the error has its name."""
    ((at, why),) = errors(call_route(shop.client, route, params={"zzz": "1"}))
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
    """The error for a mistyped parameter suggests the most similar declared one."""
    ((_, why),) = errors(shop.client.get(path))
    assert why.endswith(f"did you mean {nearest!r}?")


def test_a_mistyped_option_has_no_effect(shop: Shop) -> None:
    """A cancellation with a mistyped option is refused before the job is canceled."""
    job_id = shop.post("invoice", {"order_id": 1}).json()["job"]["id"]
    ((at, _),) = errors(shop.client.post(f"/jobs/{job_id}/cancel?forced=true", json={}))
    assert (at, shop.ledger.get(job_id).state) == (["query", "forced"], "queued")


def test_a_repeated_parameter_is_refused(shop: Shop) -> None:
    """A parameter that is not a list is refused if it is repeated; `state` may be repeated."""
    ((at, why),) = errors(shop.client.get("/jobs?limit=1&limit=2"))
    assert (at, "given 2 times" in why) == (["query", "limit"], True)
    assert shop.client.get("/jobs?state=failed&state=queued").status_code == 200


def test_the_error_for_many_names_is_short(shop: Shop) -> None:
    """However many and long the unknown names are, the response is short."""
    query = "&".join(f"{number}{'x' * 1000}" + "=" for number in range(50))
    assert len(shop.client.get(f"/jobs?{query}").content) < 20_000


def test_authentication_precedes_the_query(celery_app: Celery, tmp_path: Path) -> None:
    """A request without a key is 401, whatever its parameters are."""
    text = KeyFile(tmp_path / "keys.json").add("reader", Role.READ)
    client = TestClient(create_app(celery_app, keys=tmp_path / "keys.json"), **LOCAL)
    problem(client.get("/jobs?stat=failed"), 401, "unauthorized")
    problem(client.get("/jobs?stat=failed", headers=bearer(text)), 422, "invalid-request")


def test_parameters_of_dependencies_are_declared(celery_app: Celery) -> None:
    """Mounted in an app, a route also accepts the parameters of the dependencies of the app."""
    app = FastAPI()
    app.include_router(router(celery_app, prefix="/v1"), dependencies=[Depends(check)])
    client = TestClient(app)
    assert client.get("/v1/jobs?tenant=a&tag=x&tag=y&key=k&limit=1").status_code == 200
    ((at, _),) = errors(client.get("/v1/jobs?tenant=a&tag=x&tag=y&key=k&limits=1"))
    assert at == ["query", "limits"]


def test_declared_parameters_are_collected_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The declared parameters of a route are collected for its first request with a query, not for each."""
    collected: list[Any] = []
    collect: Any = vars(query_parameters)["get_flat_params"]

    def counted(dependant: Any) -> Any:
        collected.append(dependant)
        return collect(dependant)

    monkeypatch.setattr(query_parameters, "get_flat_params", counted)
    for number in range(5):
        assert shop.client.get(f"/jobs?limit={number + 1}").status_code == 200
        problem(shop.client.get(f"/jobs?limits={number}"), 422, "invalid-request")
    assert len(collected) == 1
