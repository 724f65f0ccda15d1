"""The tasks of the project: ordinary ones of Celery."""

import onejob
from shop.celery import app


@app.task(base=onejob.Task)
def greet(name: str) -> str:
    """Return a greeting."""
    return f"hello {name}"
