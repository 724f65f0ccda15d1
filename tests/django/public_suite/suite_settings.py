"""The settings of Django's tests."""

import os

from celery import Celery

SECRET_KEY = "of the tests"  # noqa: S105 - a name, no secret
INSTALLED_APPS = ["onejob.django"]
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["SUITE_DATABASE"]}}
CELERY_BROKER_URL = "memory://"
CELERY_ONEJOB_STORE = "django://default"
TASKS = {"default": {"BACKEND": "suite_backend.DummyBackend"}}
app = Celery("suite")
app.config_from_object("django.conf:settings", namespace="CELERY")
