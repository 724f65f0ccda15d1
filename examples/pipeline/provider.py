"""A provider of a language model, which refuses what is above its rate and counts what it has refused.

It takes so many requests at once and so many tokens a minute, as its price list says, and answers others with 429.
Its meter says for each customer how many requests were answered, which tokens are billed, and how many it had at once.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

TOKENS_PER_MINUTE = 36_000
AT_ONCE = 4
REST_SECONDS = 3.0
"""How many seconds of the rate may come at once after a rest."""
PRICE = Decimal("0.000002")
"""The price of a token, in dollars."""
BLANK = "____"


class RefusedError(Exception):
    """The request is above what the provider takes; the message says which."""


class Meter:
    """The meter of the provider: what it has answered, billed and refused."""

    def __init__(self, tokens_per_minute: int = TOKENS_PER_MINUTE) -> None:
        self._lock = threading.Lock()
        self._rate = tokens_per_minute / 60
        self._tokens = self._rate * REST_SECONDS
        self._filled_at = time.monotonic()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.billed: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    @contextmanager
    def request(self, customer: str, tokens: int) -> Iterator[None]:
        """Count a request of a customer. Raises `RefusedError`."""
        with self._lock:
            self._admit(tokens)
            self.now[customer] += 1
            self.most[customer] = max(self.most[customer], self.now[customer])
        try:
            yield
        finally:
            with self._lock:
                self.now[customer] -= 1
                self.answered[customer] += 1
                self.billed[customer] += tokens

    def _admit(self, tokens: int) -> None:
        now = time.monotonic()
        self._tokens = min(self._rate * REST_SECONDS, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        for reason, above in (("requests at once", self.now.total() >= AT_ONCE), ("tokens", tokens > self._tokens)):
            if above:
                self.refused[reason] += 1
                raise RefusedError(f"too many {reason}")
        self._tokens -= tokens


class Provider(ThreadingHTTPServer):
    """The provider on a free port of this machine, where an answer takes `seconds`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, seconds: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seconds = seconds
        self.meter = Meter()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = body["text"]
        tokens = count_tokens(text)
        try:
            with self.server.meter.request(body["customer"], tokens):
                time.sleep(self.server.seconds)
        except RefusedError as error:
            self._send(429, {"error": str(error)})
            return
        self._send(200, {"answer": ANSWERS[self.path](text), "tokens": tokens})

    def _send(self, status: int, answer: Mapping[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Write nothing: the meter has it."""


def count_tokens(text: str) -> int:
    """Return how many tokens a text has: a third more than it has words."""
    return len(text.split()) * 4 // 3


def embedding_of(text: str) -> list[float]:
    """Return the embedding of a text, which here is the share of each vowel."""
    return [round(text.count(vowel) / len(text), 3) for vowel in "aeiou"]


def card_of(text: str) -> dict[str, str]:
    """Return the card of a text: its first sentence with a blank for its longest word."""
    sentence = text.partition(". ")[2].partition(". ")[0]
    answer = max(sentence.split(), key=len)
    return {"question": sentence.replace(answer, BLANK), "answer": answer}


ANSWERS: Mapping[str, Callable[[str], object]] = {"/embed": embedding_of, "/card": card_of}
