"""The studio: a customer's document is cut into chunks, each chunk is embedded, and the chunks become study cards.

Each chunk is a job of its own, and a chord calls the job that writes the cards when all chunks of a document are done.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import celery

import onejob
from examples.pipeline import model
from examples.pipeline.texts import cut

if TYPE_CHECKING:
    from celery.result import AsyncResult

Card = dict[str, str]
FOLDER = os.environ.get("PIPELINE_FOLDER", ".")
SHELF = os.path.join(FOLDER, "shelf.db")  # noqa: PTH118 - a part of the URL, too
PRICE = Decimal("0.000002")
"""The price of a token, in dollars."""
HOUR = 3600

app = celery.Celery("studio", broker="onejob://", backend="onejob://")
app.conf.update(onejob_store=f"sqlite:///{FOLDER}/ledger.db", worker_hijack_root_logger=False)


def limits_of(weight: Any) -> list[onejob.Limit]:
    """Return the limits of a call of the model: two at once for a customer, and nine tenths of the provider's rate."""
    if os.environ.get("PIPELINE_LIMITS") == "none":
        return []
    return [onejob.Limit("customer", running=2), onejob.Limit(name="model", rate="162000/minute", weight=weight)]


retried = {"autoretry_for": (model.BusyError,), "max_retries": None, "retry_backoff": False, "default_retry_delay": 1}
"""The options of a task that calls the model: a call that was refused is tried again after a second."""


@app.task(
    base=onejob.Task, unique_on=["customer", "text"], unique_for=HOUR,
    limits=limits_of(lambda customer, text: estimate([text])), **retried,
)  # fmt: skip
def embed(customer: str, text: str) -> dict[str, Any]:
    """Return a chunk with its embedding."""
    [vector] = onejob.current_job().step("embed", paid, "embed", customer, [text])
    return {"text": text, "vector": vector}


@app.task(
    base=onejob.Task, unique_on=["customer", "title"], unique_for=HOUR,
    limits=limits_of(lambda chunks, customer, title: estimate([chunk["text"] for chunk in chunks])), **retried,
)  # fmt: skip
def write_cards(chunks: list[dict[str, Any]], customer: str, title: str) -> int:
    """Write the cards of a document, put them on the customer's shelf, and return how many there are."""
    job = onejob.current_job()
    chosen = sorted(chunks, key=lambda chunk: sum(chunk["vector"]), reverse=True)
    cards = job.step("write", paid, "cards", customer, [chunk["text"] for chunk in chosen])
    return job.step("shelve", shelve, customer, title, cards)


def estimate(texts: list[str]) -> float:
    """Return how many tokens texts may have, from their length: rather too many, since the run corrects it."""
    return 10 + sum(len(text) for text in texts) / 3


def paid(what: str, customer: str, texts: list[str]) -> list[Any]:
    """Have the model answer, and report what it has cost before anything else can happen."""
    job = onejob.current_job()
    answer = model.ask(what, customer, texts)
    job.cost(usd=PRICE * answer.tokens, tokens=answer.tokens)
    if os.environ.get("PIPELINE_LIMITS") != "none":
        job.spent("model", tokens=answer.tokens)
    return answer.values


def shelve(customer: str, title: str, cards: list[Card]) -> int:
    """Put cards on the shelf, which has no unique constraint: twice would be twice."""
    with closing(sqlite3.connect(SHELF, timeout=60)) as shelf, shelf:
        shelf.execute("create table if not exists cards (customer text, title text, question text, answer text)")
        rows = [(customer, title, card["question"], card["answer"]) for card in cards]
        shelf.executemany("insert into cards values (?, ?, ?, ?)", rows)
    return len(rows)


def submit(customer: str, title: str, text: str) -> AsyncResult[int]:
    """Submit a document of a customer, and return the result with the number of its cards."""
    with onejob.submitter(customer):
        header = [embed.s(customer, chunk) for chunk in cut(text)]
        return celery.chord(header)(write_cards.s(customer, title))
