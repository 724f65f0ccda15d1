"""What Celery's own commands show of the settings."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import celery
import pytest

from onejob.celery.hidden_settings import MASK
from tests.cases import for_each

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "whsec_" + "c2VjcmV0LW9mLXRoZS10ZXN0cy0wMTIzNDU2Nzg5"
PASSWORD = "correct-horse"  # noqa: S105 - of no server
APP = f"""
import celery, onejob
app = celery.Celery("shop", broker="memory://")
app.conf.onejob_store = "redis://:{PASSWORD}@127.0.0.1:1/0"
app.conf.onejob_lease = 61.0
app.conf.onejob_webhook_secrets = ["{SECRET}"]
app.conf.onejob_webhook_submitter_secrets = {{"shop": ["{SECRET}"]}}

@app.task(base=onejob.Task)
def invoice(order_id): ...
"""


@pytest.mark.deep
def test_celery_report_shows_no_secret(tmp_path: Path) -> None:
    """`celery report` prints neither the store's password nor a webhook secret, but the other settings."""
    (tmp_path / "shop.py").write_text(APP)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-m", "celery", "-A", "shop", "report"]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
    assert PASSWORD not in output
    assert SECRET not in output
    assert "onejob_lease: 61.0" in output
    assert "onejob_store" in output


@for_each("name, value", [
    ("onejob_store", f"postgresql://app:{PASSWORD}@db/ledger"), ("ONEJOB_STORE", f"redis://:{PASSWORD}@db/0"),
    ("onejob_webhook_secrets", [PASSWORD]), ("onejob_webhook_submitter_secrets", {"shop": [PASSWORD]}),
    ("broker_url", f"redis://:{PASSWORD}@db/0"),
])  # fmt: skip
def test_humanize_shows_no_secret(name: str, value: object) -> None:
    """`app.conf.humanize()` hides every setting with a password or a secret, Celery's own as before."""
    app = celery.Celery("shop", set_as_current=False)
    app.conf[name] = value
    text = app.conf.humanize()
    assert name in text
    assert PASSWORD not in text


def test_humanize_shows_what_is_not_secret() -> None:
    """`app.conf.humanize()` shows an empty setting and one without a secret as they are."""
    app = celery.Celery("shop", set_as_current=False)
    app.conf.update(onejob_store="", onejob_namespace="shop")
    text = app.conf.humanize()
    assert "onejob_namespace: 'shop'" in text
    assert MASK not in text
