"""API keys: the key file, roles and authentication."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from onejob.api import create_app, router
from onejob.api.api_keys import KeyFile, Role
from onejob.cli import main
from onejob.errors import ConfigurationError
from tests.http.conftest import problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery
    from fastapi import FastAPI


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    """Return an empty key file."""
    return KeyFile(tmp_path / "keys.json")


@pytest.fixture
def texts(file: KeyFile) -> dict[Role, str]:
    """Return a key of each role."""
    return {role: file.add(f"the {role} key", role) for role in Role}


@pytest.fixture
def app(celery_app: Celery, file: KeyFile, texts: dict[Role, str]) -> FastAPI:
    """Return the API with these keys."""
    return create_app(celery_app, keys=file.path)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    """Return a remote client that sends no key by default."""
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def bearer(text: str) -> dict[str, str]:
    """Return the header that carries a key."""
    return {"authorization": f"Bearer {text}"}


def submitted(client: TestClient, text: str, **more: Any) -> Any:
    """Submit a job with a key."""
    body = {"task": "shop.invoice", "kwargs": {"order_id": 7}} | more
    return client.post("/jobs", json=body, headers=bearer(text))


def test_authentication_precedes_the_body(client: TestClient) -> None:
    """A request without a key is refused before its body is read."""
    problem(client.post("/jobs", content=b"x" * 1_000_000), 401, "unauthorized")


def test_a_duplicate_records_the_key(client: TestClient, texts: dict[Role, str]) -> None:
    """A duplicate records the name of the API key as its submitter."""
    job_id = submitted(client, texts[Role.SUBMIT]).json()["job"]["id"]
    submitted(client, texts[Role.OPERATE])
    (duplicate,) = client.get(f"/jobs/{job_id}/duplicates", headers=bearer(texts[Role.READ])).json()
    assert duplicate["submitter"] == "the operate key"
    response = client.post(f"/jobs/{job_id}/cancel", json={}, headers=bearer(texts[Role.OPERATE]))
    assert response.json()["reason"] == "canceled over HTTP by the operate key"


def test_idempotency_keys_are_scoped_to_the_api_key(client: TestClient, texts: dict[Role, str]) -> None:
    """The same idempotency key from two API keys names two submissions."""
    submitted(client, texts[Role.SUBMIT], idempotency_key="1")
    other = {"kwargs": {"order_id": 8}}
    assert submitted(client, texts[Role.OPERATE], idempotency_key="1", **other).status_code == 202
    problem(submitted(client, texts[Role.SUBMIT], idempotency_key="1", **other), 422, "key-reused")


def test_the_file_stores_only_hashes(file: KeyFile, texts: dict[Role, str]) -> None:
    """The key file has only hashes of keys of 256 random bits, and only its owner can read it."""
    kept = file.path.read_text()
    assert [text for text in texts.values() if text in kept or text.removeprefix("onejob_") in kept] == []
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert {len(text) for text in texts.values()} == {len("onejob_") + 43}
    assert [entry["name"] for entry in json.loads(kept)] == [f"the {role} key" for role in Role]


def test_a_change_of_the_file_takes_effect_at_once(client: TestClient, file: KeyFile, texts: dict[Role, str]) -> None:
    """An added key is accepted, and a revoked one refused, from the next request on."""
    assert submitted(client, texts[Role.SUBMIT]).status_code == 202
    file.revoke("the submit key")
    problem(submitted(client, texts[Role.SUBMIT]), 401, "unauthorized")
    assert submitted(client, file.add("another", Role.SUBMIT)).status_code == 200


@pytest.mark.parametrize(
    "content", ["", "{", "{}x", "[{}]", '[{"name": "a", "role": "root", "sha256": "", "created_at": 0}]']
)
def test_an_invalid_file_refuses_every_request(
    client: TestClient, file: KeyFile, texts: dict[Role, str], content: str
) -> None:
    """While the key file is invalid every request is 503; the previous keys are not used."""
    before = file.path.read_text()
    file.path.write_text(content)
    problem(submitted(client, texts[Role.SUBMIT]), 503, "keys-unreadable")
    file.path.write_text(before)
    assert submitted(client, texts[Role.SUBMIT]).status_code == 202


def test_an_unsafe_key_file_is_refused(celery_app: Celery, file: KeyFile, texts: dict[Role, str]) -> None:
    """A router is not created with a missing key file, or with one that other users can write."""
    file.path.chmod(0o620)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        router(celery_app, keys=file.path)
    with pytest.raises(ConfigurationError, match="cannot be used"):
        router(celery_app, keys=file.path.with_name("none.json"))


def test_the_command_line_has_every_role(file: KeyFile) -> None:
    """`keys add` creates a key of each role, in the order in which each includes those before it."""
    for role in Role:
        arguments = ["keys", "add", f"a {role}", "--role", role.value, "--file", str(file.path)]
        text = CliRunner().invoke(main, arguments).output
        holder = file.find(text.strip())
        assert holder is not None
        assert [each for each in Role if holder.role.includes(each)] == list(Role)[: list(Role).index(role) + 1]


def test_the_command_line_manages_keys(tmp_path: Path) -> None:
    """`keys add` prints a key once, `keys list` shows names and roles, `keys revoke` removes a key."""
    path = tmp_path / "keys.json"

    def call(*args: str) -> Any:
        return CliRunner().invoke(main, ["keys", *args, "--file", str(path)])

    text = call("add", "shop", "--role", "submit").output.strip()
    holder = KeyFile(path).find(text)
    assert holder is not None
    assert (holder.name, holder.role) == ("shop", Role.SUBMIT)
    assert [row["name"] for row in json.loads(call("list", "--json").output)] == ["shop"]
    assert text not in call("list").output
    assert call("add", "shop", "--role", "read").exit_code == 1
    assert call("revoke", "shop").exit_code == 0
    assert KeyFile(path).find(text) is None
    assert "no key named" in call("revoke", "shop").output
