"""The Celery app, as Celery's documentation for Django has it."""

import os

from celery import Celery

from onejob.celery.app_state import Intervals, app_state_of

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app_state_of(app).intervals = Intervals(sweep=0.2)
app.autodiscover_tasks()
