"""The tasks of the shop."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from flask import current_app

import onejob


class Task(onejob.Task):
    """A task whose equal calls run once, in the context of the Flask app."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body."""
        with self.app.flask_app.app_context():
            return super().__call__(*args, **kwargs)


@shared_task(base=Task, unique_on=["order_id"])
def send_invoice(order_id: int, language: str = "en") -> str:
    """Write the invoice of an order; whatever its language, there is one invoice at a time."""
    return f"{current_app.name}: invoice {order_id:06} in {language}"
