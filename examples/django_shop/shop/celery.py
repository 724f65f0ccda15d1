"""The Celery app, as in any Django project. What is Celery's and onejob's is in `settings.py`, as CELERY_..."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
