"""The pages of the shop: a button that people click twice, and the state of the job behind it."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, session

import onejob
from shop.tasks import send_invoice

orders = Blueprint("orders", __name__)


@orders.get("/")
def show_form() -> str:
    """Show the button."""
    return '<form method="post" action="/orders/42/invoice"><button>Send the invoice</button></form>'


@orders.post("/orders/<int:order_id>/invoice")
def send(order_id: int) -> tuple[dict[str, Any], int]:
    """Submit the job: 202 for a new one, 200 for the one that a click before has submitted."""
    with onejob.submitter(session.get("user", "anonymous")):
        result = send_invoice.delay(order_id)
    status = 202 if result.outcome is onejob.Outcome.ADMITTED else 200
    return {"job": result.id, "outcome": result.outcome}, status


@orders.get("/jobs/<job_id>")
def show_job(job_id: str) -> tuple[dict[str, Any], int]:
    """Show the state of a job, and its result at the end."""
    result = send_invoice.AsyncResult(job_id)
    try:
        job = result.job
    except onejob.errors.JobNotFoundError:
        return {"error": "there is no such job"}, 404
    return {"state": job.state, "result": result.get() if job.state == "completed" else None}, 200
