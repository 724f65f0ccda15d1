"""Settings of the shop, as small as they can be."""

import os
import secrets

SECRET_KEY = os.environ.get("SHOP_SECRET_KEY") or secrets.token_urlsafe()  # without one a restart ends all sessions
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["onejob.django", "orders"]
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": os.environ.get("PGHOST", "localhost"),
        "PORT": os.environ.get("PGPORT", "5432"),
        "NAME": os.environ.get("PGDATABASE", "shop"),
        "USER": os.environ.get("PGUSER", "shop"),
        "PASSWORD": os.environ.get("PGPASSWORD", ""),
    }
}
CELERY_BROKER_URL = os.environ.get("BROKER_URL", "redis://localhost:6379/0")
CELERY_ONEJOB_STORE = "django://default"
TASKS = {"default": {"BACKEND": "onejob.django.TaskBackend"}}
