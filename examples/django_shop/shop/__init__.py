"""A shop: Django keeps the orders, onejob the jobs, PostgreSQL both."""

from shop.celery import app

__all__ = ["app"]
