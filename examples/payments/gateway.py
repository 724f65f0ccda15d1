"""A payment gateway in a process of its own: flaky, but it honors idempotency keys.

A charge is durable before the reply. Its faults are seeded by order and request, not by time: an order gets the same
faults in every run.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import sqlite3
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DECLINED_CARD = "4000-0002"
BUSY, BROKEN, CUT, SLOW, WELL = "busy", "broken", "cut", "slow", "well"
FAULTS = {BUSY: 15, BROKEN: 10, CUT: 10, SLOW: 15, WELL: 50}
"""How often a request gets each fault, in percent."""
TABLES = """
pragma journal_mode = wal;
create table if not exists charges (
  id integer primary key, key text unique, order_id integer, cents integer, card text, taken boolean
);
create table if not exists visits (order_id integer, visit integer, fault text, primary key (order_id, visit));
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and a JSON body."""

    status: int
    body: dict[str, Any]


class Record:
    """The charges of the gateway and the requests it has got, in a SQLite file."""

    def __init__(self, path: Path, *, keyless: bool = False) -> None:
        self.path = path.resolve()
        self._keyless = keyless
        with self.open() as database:
            database.executescript(TABLES)

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """Open the file; what is written in the block is one transaction."""
        with closing(sqlite3.connect(self.path, timeout=30)) as database, database:
            yield database

    def visit(self, order_id: int, seed: int | None) -> tuple[int, str]:
        """Count a request for an order and choose its fault; without a seed there is none."""
        with self.open() as database:
            database.execute("begin immediate")
            earlier = "select count(*) from visits where order_id = ?"
            visit = 1 + int(database.execute(earlier, (order_id,)).fetchone()[0])
            generator = random.Random(f"{seed} {order_id} {visit}")
            fault = WELL if seed is None else generator.choices(list(FAULTS), list(FAULTS.values()))[0]
            database.execute("insert into visits values (?, ?, ?)", (order_id, visit, fault))
        return visit, fault

    def charge(self, key: str, order_id: int, cents: int, card: str, visit: int) -> Answer:
        """Charge once for a key, and return the same answer to every later request with it."""
        key = f"{key} {visit}" if self._keyless else key
        with self.open() as database:
            database.execute("begin immediate")
            requested = (key, order_id, cents, card, card != DECLINED_CARD)
            database.execute(
                "insert into charges (key, order_id, cents, card, taken) values (?, ?, ?, ?, ?) on conflict do nothing",
                requested,
            )
            columns = "id, key, order_id, cents, card, taken"
            charge_id, *stored = database.execute(f"select {columns} from charges where key = ?", (key,)).fetchone()  # noqa: S608
        if tuple(stored) != requested:
            return Answer(422, {"error": "this key was used for another charge"})
        return Answer(200, {"charge": f"ch_{charge_id}"}) if stored[-1] else Answer(402, {"error": "card declined"})


class Gateway(ThreadingHTTPServer):
    """The service on a free port of this machine. Without a seed it has no faults."""

    daemon_threads = True

    def __init__(self, record: Record, seed: int | None) -> None:
        super().__init__(("127.0.0.1", 0), RequestHandler)
        self.record = record
        self.seed = seed

    @property
    def url(self) -> str:
        """The URL of the service."""
        return f"http://127.0.0.1:{self.server_port}/charges"


class RequestHandler(BaseHTTPRequestHandler):
    """One request."""

    server: Gateway

    def do_POST(self) -> None:
        """Charge, with the fault of this request before or after it."""
        requested = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        visit, fault = self.server.record.visit(requested["order"], self.server.seed)
        if fault == BUSY:
            self._reply(Answer(503, {"error": "busy, nothing was done"}))
            return
        key = self.headers["Idempotency-Key"]
        answer = self.server.record.charge(key, requested["order"], requested["cents"], requested["card"], visit)
        if fault == CUT:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if fault == SLOW:
            time.sleep(0.7)
        self._reply(Answer(500, {"error": "internal error"}) if fault == BROKEN else answer)

    def _reply(self, answer: Answer) -> None:
        body = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
        """Log nothing: the record has every request."""


def main() -> None:
    """Serve, and write the address into a file when it is known."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--address", type=Path, required=True)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--keyless", action="store_true")
    options = parser.parse_args()
    gateway = Gateway(Record(options.record, keyless=options.keyless), options.seed)
    options.address.with_suffix(".new").write_text(gateway.url)
    options.address.with_suffix(".new").rename(options.address)
    gateway.serve_forever()


if __name__ == "__main__":
    main()
