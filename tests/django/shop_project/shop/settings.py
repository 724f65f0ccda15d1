"""The settings, of which a test gives some as JSON."""

import json
import os

SECRET_KEY = "of the tests"  # noqa: S105 - a name, no secret
INSTALLED_APPS = ["onejob.django", "shop"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TASKS = {"default": {"BACKEND": "onejob.django.TaskBackend", "QUEUES": ["default", "slow"]}}
CELERY_ONEJOB_STORE = "django://default"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
globals().update(json.loads(os.environ["SHOP_SETTINGS"]))
