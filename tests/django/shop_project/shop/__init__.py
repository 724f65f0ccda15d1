"""The project of these tests: one app, and onejob's."""

from shop.celery import app

__all__ = ["app"]
