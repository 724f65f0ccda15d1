"""The Celery app. The ledger lives in the database of the orders, in a schema of its own."""

import os
from urllib.parse import quote

from celery import Celery
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")


def ledger_url(database: dict[str, str]) -> str:
    """Return the URL of a database in Django's settings."""
    user, password = quote(database["USER"], safe=""), quote(database["PASSWORD"], safe="")
    return f"postgresql://{user}:{password}@{database['HOST']}:{database['PORT']}/{database['NAME']}"


app = Celery("shop", broker=settings.BROKER_URL)
app.conf.onejob_store = ledger_url(settings.DATABASES["default"])
app.conf.broker_connection_retry_on_startup = True
app.autodiscover_tasks()
