"""The studio: a customer's document is cut into chunks, each chunk is embedded, and the chunks become study cards.

A document is one job, which has itself replaced by a chord. Each chunk is embedded by a job of its own, and another one
writes its card. When all cards of a document are there, its job runs once more and puts them on the customer's shelf.
The jobs that wait for the model are coroutines in one event loop; the others are functions, and run in threads.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import celery

import onejob
from examples.pipeline.model import BusyError, ask
from examples.pipeline.provider import PRICE
from examples.pipeline.texts import cut

if TYPE_CHECKING:
    from collections.abc import Callable

Card = dict[str, Any]
FOLDER = os.environ.get("PIPELINE_FOLDER", ".")
SHELF = os.path.join(FOLDER, "shelf.db")  # noqa: PTH118 - a part of the URL, too
HOUR = 3600
LIMITED = os.environ.get("PIPELINE_LIMITS") != "none"

app = celery.Celery("studio", broker="onejob://", backend="onejob://")
app.conf.update(onejob_store=f"sqlite:///{FOLDER}/ledger.db", worker_hijack_root_logger=False)


def limits_of(weight: Callable[..., float]) -> list[onejob.Limit]:
    """Return the limits of a call of the model: two at once for a customer, and nine tenths of the provider's rate."""
    if not LIMITED:
        return []
    return [onejob.Limit("customer", running=2), onejob.Limit(name="model", rate="32400/minute", weight=weight)]


@app.task(base=onejob.Task, bind=True, unique_on=["customer", "title"], unique_for=HOUR)
def make_cards(self: Any, customer: str, title: str, text: str) -> int:
    """Make the cards of a document, and return how many there are."""
    header = [embed.s(customer, chunk) | write_card.s(customer) for chunk in cut(text)]
    raise self.replace(celery.chord(header, shelve.s(customer, title)))


@app.task(
    base=onejob.Task, unique_on=["customer", "text"], unique_for=HOUR,
    limits=limits_of(lambda text, **_: estimate(text)),
    autoretry_for=(BusyError,), max_retries=None, default_retry_delay=1,
)  # fmt: skip
async def embed(customer: str, text: str) -> dict[str, Any]:
    """Return a chunk with its embedding."""
    return {"text": text, "vector": await onejob.current_job().astep("embed", paid, "embed", customer, text)}


@app.task(
    base=onejob.Task, unique_on=["customer", "chunk.text"], unique_for=HOUR,
    limits=limits_of(lambda chunk, **_: estimate(chunk["text"])),
    autoretry_for=(BusyError,), max_retries=None, default_retry_delay=1,
)  # fmt: skip
async def write_card(chunk: dict[str, Any], customer: str) -> Card:
    """Write the card of a chunk that is embedded."""
    card = await onejob.current_job().astep("write", paid, "card", customer, chunk["text"])
    return {**card, "rank": sum(chunk["vector"])}


@app.task(base=onejob.Task, unique_on=["customer", "title"])
def shelve(cards: list[Card], customer: str, title: str) -> int:
    """Put the cards of a document on the customer's shelf, the best ones first, and return how many there are."""
    best = sorted(cards, key=lambda card: card["rank"], reverse=True)
    rows = [(customer, title, card["question"], card["answer"]) for card in best]
    return onejob.current_job().step("shelve", put, rows)


def estimate(text: str) -> float:
    """Return how many tokens a text may have, from its length: rather too many, since the run corrects it."""
    return 10 + len(text) / 3


async def paid(what: str, customer: str, text: str) -> Any:
    """Have the model answer, and report what it has cost before anything else can happen."""
    job = onejob.current_job()
    answer = await ask(what, customer, text)
    await job.acost(usd=PRICE * answer.tokens, tokens=answer.tokens)
    if LIMITED:
        await job.aspent("model", tokens=answer.tokens)
    return answer.value


def put(rows: list[tuple[str, str, str, str]]) -> int:
    """Put cards on the shelf, which has no unique constraint: twice would be twice."""
    with closing(sqlite3.connect(SHELF, timeout=60)) as shelf, shelf:
        shelf.execute("create table if not exists cards (customer text, title text, question text, answer text)")
        shelf.executemany("insert into cards values (?, ?, ?, ?)", rows)
    return len(rows)
