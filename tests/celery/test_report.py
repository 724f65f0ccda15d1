"""What Celery's own commands show of the settings."""

from __future__ import annotations

import celery

from onejob.celery.hidden_settings import MASK
from tests.cases import for_each

PASSWORD = "correct-horse"  # noqa: S105 - of no server


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
