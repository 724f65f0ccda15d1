"""The laws of examples/pipeline: the whole of it with a real worker, and its provider by itself."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import onejob
from checks.project import ROOT
from examples.pipeline.provider import AT_ONCE, PRICE, REST_SECONDS, Meter, RefusedError, card_of, count_tokens
from examples.pipeline.texts import cut, document

DOCUMENTS, CHUNKS = 6, 2
SMALL = f"--documents {DOCUMENTS} --chunks {CHUNKS} --seconds 0.05 --workers 1".split()


def play(*options: str) -> str:
    """Run the example, and return what it prints."""
    command = [sys.executable, "-m", "examples.pipeline", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def numbers(pattern: str, printed: str) -> list[int]:
    """Return the numbers that a pattern finds in what the example has printed."""
    found = re.search(pattern, printed)
    assert found, printed
    return [int(number) for number in found.groups()]


def chunks_of(customer: str) -> dict[str, list[str]]:
    """Return the chunks of a customer's documents by title."""
    name, count = {"publisher": ("Volume", DOCUMENTS), "school": ("Lesson", 3)}[customer]
    titles = [f"{name} {number}" for number in range(1, count + 1)]
    return {title: cut(document(title, CHUNKS)) for title in titles}


def test_limits_keep_what_the_provider_takes(tmp_path: Path) -> None:
    """Nothing is refused, nobody has more than two requests at once, and each chunk is paid once and has one card."""
    printed = play(*SMALL, "--keep", str(tmp_path / "kept"))
    assert "9 admitted, 9 attached" in printed
    assert numbers(r"and refused (\d+)", printed) == [0]
    most = numbers(r"at most (\d+) of the publisher and (\d+) of the school", printed)
    assert max(most) <= 2
    ready, everything = numbers(r"were ready when (\d+) of the publisher's (\d+) were", printed)
    assert ready < everything == DOCUMENTS
    with onejob.Client(f"sqlite:///{tmp_path}/kept/ledger.db") as client:
        spent = {cost.name: cost.spent for cost in client.costs("submitter") if cost.unit == "usd"}
    with closing(sqlite3.connect(tmp_path / "kept" / "shelf.db")) as shelf:
        cards = shelf.execute("select customer, title, question, answer from cards").fetchall()
    wanted = []
    for customer in ("publisher", "school"):
        documents = chunks_of(customer)
        assert spent[customer] == sum(2 * PRICE * count_tokens(chunk) for each in documents.values() for chunk in each)
        wanted += [(customer, title, *card_of(chunk).values()) for title, each in documents.items() for chunk in each]
    assert sorted(cards) == sorted(wanted)


@pytest.mark.deep
def test_the_whole_pipeline_is_as_its_readme_says() -> None:
    """The pipeline as `make pipeline` plays it has no refusal, two workers, and 45 cards."""
    printed = play()
    assert "answered 90 requests and refused 0\n" in printed
    assert "the publisher has 36 cards of 12 documents\nthe school has 9 cards of 3 documents\n" in printed
    assert "which is the same" in printed


@pytest.mark.deep
def test_without_limits_the_provider_refuses() -> None:
    """The meter can count: without limits forty coroutines have more requests at once than the provider takes."""
    printed = play("--without-limits")
    assert numbers(r"and refused (\d+): ", printed)[0] > 0
    assert "the publisher has 36 cards of 12 documents\nthe school has 9 cards of 3 documents\n" in printed


# --- the provider ---------------------------------------------------------------------------------------------------


def test_the_provider_refuses_one_request_too_many() -> None:
    """More requests at once than on the price list are refused and counted; after the end of one there is room."""
    meter = Meter()
    with ExitStack() as stack:
        for _ in range(AT_ONCE):
            stack.enter_context(meter.request("school", 1))
        with pytest.raises(RefusedError, match="requests at once"):
            stack.enter_context(meter.request("publisher", 1))
    with meter.request("publisher", 1):
        pass
    assert (meter.refused, meter.most["school"], meter.billed["publisher"]) == ({"requests at once": 1}, AT_ONCE, 1)


def test_the_provider_refuses_tokens_above_its_rate() -> None:
    """After a rest so many tokens come at once as the price list says, and one more is refused and not billed."""
    meter = Meter(tokens_per_minute=60)
    with meter.request("school", int(REST_SECONDS)):
        pass
    with pytest.raises(RefusedError, match="tokens"), meter.request("school", 2):
        pass
    assert (meter.refused, meter.billed) == ({"tokens": 1}, {"school": int(REST_SECONDS)})
