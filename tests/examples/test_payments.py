"""The laws of examples/payments: the whole of it with real processes, and its gateway by itself."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from checks.project import ROOT
from examples.payments.cards import DeclinedError, MisuseError, NoAnswerError, take_money
from examples.payments.gateway import BROKEN, BUSY, CUT, DECLINED_CARD, FAULTS, Gateway, Record

GOOD_CARD = "4242-4242"
SEED = 188
"""A seed with slow requests at which a kill can happen, and with several lost replies."""


def play(record: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.payments", "--seed", str(SEED), "--record", str(record), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def look(record: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(record)) as database:
        return database.execute(query).fetchall()


@pytest.mark.deep
def test_the_books_balance(tmp_path: Path) -> None:
    """Each paid order is charged once at the gateway and once in the books, though workers die between the two."""
    result = play(tmp_path / "gateway.db", "--orders", "15", "--kills", "2")
    assert result.returncode == 0, result.stdout + result.stderr
    # A second click that comes when the first one is paid is a job of its own, which tells of the order's own.
    clicks = re.search(r"^15 orders, each clicked twice: (\d+) admitted, (\d+) attached$", result.stdout, re.MULTILINE)
    assert clicks
    assert sum(map(int, clicks.groups())) == 30
    assert len(re.findall(r"^killed worker\d@shop with SIGKILL", result.stdout, re.MULTILINE)) == 2
    assert "The books balance." in result.stdout
    taken = look(tmp_path / "gateway.db", "select order_id, cents from charges where taken")
    refused = look(tmp_path / "gateway.db", "select order_id from charges where not taken")
    assert sorted(order for order, *_ in taken + refused) == list(range(1, 16))
    money = f"{sum(cents for _, cents in taken) / 100:.2f}"
    assert f"shop's balance  {' = '.join([money] * 4)}\n" in result.stdout


@pytest.mark.deep
def test_without_keys_the_books_do_not_balance(tmp_path: Path) -> None:
    """The balance can fail: a gateway that ignores the keys takes money twice, and the exit code is 1."""
    result = play(tmp_path / "gateway.db", "--orders", "15", "--kills", "0", "--keyless")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "THE BOOKS DO NOT BALANCE." in result.stdout
    assert look(tmp_path / "gateway.db", "select 1 from charges where taken group by order_id having count(*) > 1")


# --- the gateway ----------------------------------------------------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int | None], Gateway]]:
    """Return a function that starts the gateway on one record."""
    started: list[Gateway] = []

    def another(seed: int | None = None) -> Gateway:
        started.append(Gateway(Record(tmp_path / "gateway.db"), seed))
        threading.Thread(target=started[-1].serve_forever, args=(0.01,)).start()
        return started[-1]

    yield another
    for gateway in started:
        gateway.shutdown()
        gateway.server_close()


@pytest.fixture
def gateway(start: Callable[[], Gateway]) -> Gateway:
    """Return a gateway without faults."""
    return start()


def charges(gateway: Gateway) -> list[tuple[Any, ...]]:
    return look(gateway.record.path, "select order_id, cents from charges where taken")


def test_a_key_charges_once(gateway: Gateway) -> None:
    """Many requests with one key at once are one charge, and all get its id; another key is another charge."""
    with ThreadPoolExecutor(8) as pool:
        charge_ids = list(pool.map(lambda _: take_money(gateway.url, "a", 1, 500, GOOD_CARD), range(8)))
    assert {take_money(gateway.url, "b", 1, 500, GOOD_CARD)} & {*charge_ids} == set()
    assert (len(set(charge_ids)), charges(gateway)) == (1, [(1, 500), (1, 500)])


@pytest.mark.parametrize(("order", "cents", "card"), [(1, 501, GOOD_CARD), (2, 500, GOOD_CARD), (1, 500, "4242-1")])
def test_a_key_belongs_to_one_charge(gateway: Gateway, order: int, cents: int, card: str) -> None:
    """A key with another order, amount or card is answered with 422, and nothing is charged."""
    take_money(gateway.url, "a", 1, 500, GOOD_CARD)
    with pytest.raises(MisuseError, match=r"^422 "):
        take_money(gateway.url, "a", order, cents, card)
    assert charges(gateway) == [(1, 500)]


def test_a_declined_card_stays_declined(gateway: Gateway) -> None:
    """A refusal is stored like a charge: the same key gets it again, and nothing is ever charged."""
    for _ in range(2):
        with pytest.raises(DeclinedError, match="card declined"):
            take_money(gateway.url, "a", 1, 500, DECLINED_CARD)
    assert look(gateway.record.path, "select taken from charges") == [(0,)]


@pytest.mark.parametrize(("fault", "taken"), [(BUSY, []), (BROKEN, [(1, 500)]), (CUT, [(1, 500)])])
def test_faults_are_one_error(
    start: Callable[[int | None], Gateway], monkeypatch: pytest.MonkeyPatch, fault: str, taken: list[tuple[int, int]]
) -> None:
    """Whether the gateway fails before or after it has charged, the shop gets the same error."""
    for name in FAULTS:
        monkeypatch.setitem(FAULTS, name, int(name == fault))
    faulty = start(SEED)
    with pytest.raises(NoAnswerError):
        take_money(faulty.url, "a", 1, 500, GOOD_CARD)
    assert charges(faulty) == taken


def test_faults_are_the_same_for_a_seed(tmp_path: Path) -> None:
    """Equal seeds give an order the same faults, request by request."""
    first, second = (Record(tmp_path / name) for name in ("a.db", "b.db"))
    assert [first.visit(1, SEED) for _ in range(30)] == [second.visit(1, SEED) for _ in range(30)]
