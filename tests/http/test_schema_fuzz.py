"""Every response conforms to the OpenAPI document."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onejob.celery.app_state import app_state_of
from tests.http.serving import serving

ROOT = Path(__file__).parents[2]
CASES = 400
SEED = 1
EXAMPLES = 25
CONFIG = """
hooks = "{folder}/hooks.py"
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", "401", "403", "404", "409", "410", "429"]
"""
HOOKS = """
import itertools, schemathesis
from chaos.fuzz_api import sendable

numbers = itertools.count()


@schemathesis.hook
def before_call(context, case, kwargs):
    case.body = sendable(case.body)
    if isinstance(case.body, dict) and isinstance(case.body.get("idempotency_key"), str):
        if 0 < len(case.body["idempotency_key"]) < 200:  # a key belongs to the arguments of its first request
            case.body["idempotency_key"] += f"{next(numbers):06}"  # of one length, so that no two keys are equal
"""


@pytest.mark.deep
def test_every_response_is_declared(tmp_path: Path) -> None:
    """Valid requests are accepted, invalid ones refused, and each response is declared: none is a 5XX."""
    from chaos.fuzz_api import fuzz, target_on  # here, since its import takes as long as a hundred tests

    target = target_on(f"sqlite:///{tmp_path / 'ledger.db'}", "unused")
    score = fuzz(target, CASES, SEED)
    target.ledger.close()
    assert score.wrong == [], f"seed {SEED}: {score}"
    assert score.cases == CASES
    assert {"200", "202", "404", "409", "422"} <= set(score.statuses), f"seed {SEED}: {score}"


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_a_client_of_the_document_meets_no_surprise(tmp_path: Path) -> None:
    """The command line of Schemathesis finds no failure on a server, with all its checks in all its phases."""
    from chaos.fuzz_api import web_on  # here, for the same reason

    web, app = web_on(f"sqlite:///{tmp_path / 'ledger.db'}")
    (tmp_path / "schemathesis.toml").write_text(CONFIG.format(folder=tmp_path))
    (tmp_path / "hooks.py").write_text(HOOKS)
    with serving(web) as served:
        options = ["--seed", str(SEED), "--max-examples", str(EXAMPLES), "--checks", "all", "--no-color"]
        config = ["--config-file", str(tmp_path / "schemathesis.toml")]
        command = [sys.executable, "-m", "schemathesis.cli", *config, "run"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command += [*options, f"{served.url}/openapi.json"]
        found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    app_state_of(app).ledger.close()
    assert found.returncode == 0, found.stdout[-20_000:] + found.stderr
