"""onejob in Django: an app with migrations and checks, and a backend for `django.tasks`.

`INSTALLED_APPS = ["onejob.django"]`, `CELERY_ONEJOB_STORE = "django://default"`, and `manage.py migrate`.
"""
