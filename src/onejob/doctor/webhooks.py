"""Checks of webhooks and API keys: the secrets, the permitted addresses, and the file of the keys."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from celery import Celery

from onejob.celery.app_state import app_state_of
from onejob.errors import ConfigurationError
from onejob.health.finding import Check, Finding, Installation, Level, count_text
from onejob.jobs.durations import DAY
from onejob.jobs.query import Query
from onejob.jobs.timestamps import duration_text
from onejob.ledger.ledger import Ledger
from onejob.observability.metrics import WEBHOOK_TASK
from onejob.webhooks.job import WebhookPayload

LOOKED_AT = 100
"""The number of waiting webhooks that are examined: the newest."""
EXPIRES_SOON = 14 * DAY
READABLE_BY_OTHERS = 0o004

# fmt: off
UNSIGNED = Check("webhooks-unsigned", "webhooks", Level.ERROR,
    when="webhooks wait in the ledger, and the app has no secret that signs them, or no packages to send them",
    meaning="they are not delivered, and become dead letters",
    remedy="`app.conf.onejob_webhook_secrets = ['whsec_...']` in the workers, and `pip install \"onejob[webhooks]\"`")
PLAIN = Check("webhooks-plain-http", "webhooks", Level.WARNING,
    when="`onejob_webhook_ports` has 80",
    meaning="webhooks may be sent unencrypted: whoever is on the way reads the results; the signature shows changes",
    remedy="remove 80 from `onejob_webhook_ports`")
PRIVATE = Check("webhooks-private-networks", "webhooks", Level.INFO,
    when="`onejob_webhook_allow` names private networks",
    meaning="whoever may submit a job with a webhook URL can have workers send requests into these networks",
    remedy="keep the networks as small as the receivers need")
UNUSABLE = Check("keys-unusable", "keys", Level.ERROR,
    when="the file of API keys cannot be read, is invalid, is writable by others or in a folder that is, or belongs to "
    "a user who is neither root, nor the user of the server, nor the owner of the folder",
    meaning="the API answers 503 to every request rather than accept a revoked or forged key",
    remedy="`chmod 640 FILE`, in a folder without write access for all, owned by root with the group of the server; "
    "`onejob keys list --file FILE` reads it")
READABLE = Check("keys-readable", "keys", Level.INFO,
    when="every user of the machine may read the file of API keys",
    meaning="the file has hashes of random keys, which cannot be reversed; names, roles and quotas are visible",
    remedy="`chmod 640 FILE`")
OWNER = Check("keys-owner", "keys", Level.INFO,
    when="the file of API keys belongs to neither root nor the user who runs the command",
    meaning="whoever has that account can add keys; and a server of another user refuses the file, unless its folder "
    "has the same owner",
    remedy="`chown root FILE`, with the group of the server")
EXPIRING = Check("keys-expiring", "keys", Level.WARNING,
    when=f"an API key has expired, or expires within {EXPIRES_SOON / DAY:g} days",
    meaning="its client gets 401 from then on, and can submit nothing",
    remedy="`onejob keys rotate NAME --file FILE`, and give the client the new key; `onejob keys revoke` for one that "
    "nobody uses")
# fmt: on


def examine(installation: Installation) -> Iterator[Finding]:
    """Examine the webhook settings of the app, and the file of API keys, where they are given."""
    if installation.app is not None:
        yield from _check_webhooks(installation.app, installation.ledger)
    if installation.keys is not None:
        yield from check_keys(installation.keys, time.time())


def _check_webhooks(app: Celery, ledger: Ledger) -> Iterator[Finding]:
    settings = app_state_of(app).webhooks
    waiting = ledger.find(Query(task=WEBHOOK_TASK, unsettled=True, limit=LOOKED_AT))
    for signer in sorted({WebhookPayload.from_job(webhook).signer for webhook in waiting}):
        try:
            settings.check_signer(signer)
        except ConfigurationError as error:
            yield UNSIGNED.found(str(error))
    if settings.allows_http:
        yield PLAIN.found(f"onejob_webhook_ports is {list(settings.ports)}")
    if settings.allow:
        yield PRIVATE.found(f"onejob_webhook_allow is {list(settings.allow)}")


def check_keys(path: Path, now: float) -> Iterator[Finding]:
    """Check a file of API keys. `now` is the time, in seconds since the epoch."""
    from onejob.api.api_keys import KeyFile

    try:
        keys = KeyFile(path).read(manages=True)
    except ConfigurationError as error:
        yield UNUSABLE.found(str(error))
        return
    owner, mode = path.stat().st_uid, path.stat().st_mode
    if owner not in {0, os.geteuid()}:
        yield OWNER.found(f"{path} belongs to the user {owner}")
    if mode & READABLE_BY_OTHERS:
        yield READABLE.found(f"the mode of {path} is {mode & 0o777:o}")
    lasting = [(key.name, key.expires_at - now) for key in keys if key.expires_at is not None]
    due = [(name, left) for name, left in lasting if left < EXPIRES_SOON]
    for name, left in due:
        yield EXPIRING.found(f"the key {name} " + (f"expires in {duration_text(left)}" if left > 0 else "has expired"))
    if not due:
        yield Finding(Level.OK, "keys", f"{count_text(len(keys), 'key')} in {path}")
