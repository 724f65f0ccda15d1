"""The Celery app of the shop: `celery -A make_celery worker`, `onejob --app make_celery jobs`."""

from shop import create_app

app = create_app().extensions["celery"]
