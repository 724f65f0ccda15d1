"""The client of one Redis: scripts by their digests, bounded retries, and driver errors translated to ours."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

from redis import exceptions
from redis.backoff import EqualJitterBackoff

from onejob.errors import StoreError, StoreRefusedError
from onejob.jobs.model import JobRow
from onejob.stores.carrier import carrier
from onejob.stores.redis.connection import Connections, address_of, location_of, pool_of
from onejob.stores.redis.errors import rule_of, translate
from onejob.stores.redis.rows import CONSTANTS, PARTS, Keys, job_of
from onejob.stores.statement_files import CONSTANTS as SHARED_CONSTANTS
from onejob.stores.statement_files import statements

T = TypeVar("T")

ATTEMPTS = 3
"""How often a request is sent at most. It may be repeated because every script is idempotent."""
PAGE_SIZE = 100
"""How many jobs one request reads at most."""
_BACKOFF = EqualJitterBackoff(cap=0.5, base=0.05)


class Call(NamedTuple):
    """A call of one script. Every key that the script uses is in `keys`. A test's clock or "" precedes `arguments`."""

    script: str
    keys: Sequence[str]
    arguments: Sequence[str | bytes] = ()


Request: TypeAlias = "Call | Callable[[], Call] | tuple[str, ...]"
"""A call of a script, a function that returns the call when it is sent, or a command that reads."""


class Group(NamedTuple):
    """The requests of one caller, which are sent together with those of others."""

    requests: Sequence[Request]
    partial: bool
    """Whether an error takes the place of its reply."""

    def result(self, replies: list[Any]) -> list[Any] | StoreError:
        """Return the replies, or the first error among them."""
        errors = () if self.partial else (reply for reply in replies if isinstance(reply, StoreError))
        return next(iter(errors), replies)


class Client:
    """Sends requests to the Redis at `url`. `clock` replaces the server's clock, for tests."""

    def __init__(self, url: str, clock: Callable[[], float] | None = None) -> None:
        self.pool = pool = pool_of(url)
        self.address = address_of(pool)
        self._location = location_of(pool)
        self._connections = Connections(pool)
        self._clock = clock

    def call(self, script: str, keys: Sequence[str], arguments: Sequence[str | bytes] = ()) -> Any:
        """Call one script, and return its reply. Raises `StoreError`."""
        return self.send([Call(script, keys, arguments)])[0]

    def read(self, *commands: tuple[str, ...]) -> list[Any]:
        """Return the replies to commands that read, which are not atomic together. Raises `StoreError`."""
        return self.send(commands)

    def send(self, requests: Sequence[Request], *, partial: bool = False, by_digest: bool = True) -> list[Any]:
        """Send requests in one round trip, in this order, and return their replies. Raises `StoreError`.

        `partial`: the reply to a call that the server refuses is the `StoreError`. `by_digest`: name scripts by their
        digests; scripts that the server does not have (it was restarted, or flushed) are sent again as texts, and
        unless `partial`, the requests beside them are sent again, too.
        """
        if not requests:
            return []
        if (by := carrier()) is not None:
            replies: list[Any] = by.carry(self._send_groups, Group(requests, partial))
            return replies
        return self._send(requests, partial=partial, by_digest=by_digest)

    def _send_groups(self, groups: Sequence[Group]) -> list[list[Any] | StoreError]:
        """Send the requests of several callers in one round trip; return the replies to each, or its error."""
        try:
            replies = iter(self._send([each for group in groups for each in group.requests], partial=True))
        except StoreRefusedError:  # a value of one cannot be sent, and those after it were not
            return [self._send_alone(group) for group in groups]
        return [group.result([next(replies) for _ in group.requests]) for group in groups]

    def _send_alone(self, group: Group) -> list[Any] | StoreError:
        try:
            return self._send(group.requests, partial=group.partial)
        except StoreError as error:
            return error

    def _send(self, requests: Sequence[Request], *, partial: bool, by_digest: bool = True) -> list[Any]:
        number = 1
        while True:
            clock = "" if self._clock is None else str(self._clock())
            try:
                replies = self._connections.execute(commands_of(requests, clock, by_digest=by_digest), partial=partial)
            except (exceptions.RedisError, OSError, UnicodeEncodeError) as error:
                if isinstance(error, exceptions.NoScriptError) and by_digest:
                    by_digest = False
                    continue
                if number == ATTEMPTS or not rule_of(error).repeats:
                    raise translate(error, self._location) from error
            else:
                return self._answers(requests, replies) if partial else replies
            time.sleep(_BACKOFF.compute(number))
            number += 1

    def _answers(self, requests: Sequence[Request], replies: Sequence[Any]) -> list[Any]:
        """Return the replies with a `StoreError` for each error; run calls again whose scripts the server lacked."""
        unknown = [
            each for each, reply in zip(requests, replies, strict=True) if isinstance(reply, exceptions.NoScriptError)
        ]
        again = iter(self._send(unknown, partial=True, by_digest=False) if unknown else ())
        answers = (next(again) if isinstance(reply, exceptions.NoScriptError) else reply for reply in replies)
        return [translate(answer, self._location) if isinstance(answer, Exception) else answer for answer in answers]

    def close(self) -> None:
        """Close the idle connections now. The next request opens new ones."""
        self._connections.close()


def commands_of(
    requests: Sequence[Request], clock: str = "", *, by_digest: bool = True
) -> Iterator[tuple[str | bytes, ...]]:
    """Yield the commands of requests, with scripts by digest or as texts; each is built when the previous was sent."""
    for request in requests:
        call = request() if callable(request) else request
        if isinstance(call, Call):
            text, digest = _load_script(call.script)
            name, code = ("EVALSHA", digest) if by_digest else ("EVAL", text)
            yield (name, code, str(len(call.keys)), *call.keys, clock, *call.arguments)
        else:
            yield call


LUA = statements(__package__, ".lua")
_CONSTANTS = CONSTANTS | {name.upper(): constant for name, constant in SHARED_CONSTANTS.items()}
_CONSTANT = re.compile(rf"\b(?:{'|'.join(_CONSTANTS)})\b")
_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end$", re.MULTILINE | re.DOTALL)
_FUNCTIONS = {found[1]: found[0] for found in _FUNCTION.finditer(LUA["prelude"])}


@cache
def _load_script(name: str) -> tuple[str, str]:
    """Return a script with the functions that it uses, and numbers for constants; and its digest for EVALSHA.

    Redis requires `#!lua` and its flags in the first line, so the rest is inserted after it.
    """
    shebang, _, code = LUA[name].partition("\n")
    for function, definition in reversed(_FUNCTIONS.items()):  # each may use those before it
        if re.search(rf"\b{function}\b", code):
            code = f"{definition}\n{code}"
    text = f"{shebang}\n{_CONSTANT.sub(lambda found: json.dumps(_CONSTANTS[found[0]]), code)}"
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Part:
    """A part of the store: the client, the keys of the ledger, and how jobs are read."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def _read_jobs(self, ids: Sequence[str], *, light: bool = False) -> list[JobRow]:
        """Return the jobs of these ids that exist, in one round trip; `light`: without their large fields."""
        pages = [get_many(self._keys, page, light=light) for page in pages_of(ids)]
        replies = self._client.send(pages)
        found = zip(ids, (parts for reply in replies for parts in reply), strict=True)
        return [job_of(job_id, parts) for job_id, parts in found if parts]


def get_many(keys: Keys, ids: Sequence[str], *, light: bool = False) -> Call:
    """Return the call that reads jobs; `light`: without their large fields."""
    last = 1 if light else len(PARTS) - 1
    return Call("get_many", (*keys.wake_sets, *map(keys.job, ids)), (str(last), *ids))


def pages_of(ids: Sequence[T], size: int = PAGE_SIZE) -> list[Sequence[T]]:
    """Return ids in portions that one request handles."""
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def pairs_of(flat: Sequence[str]) -> dict[str, str]:
    """Return a hash from its reply, which has names and values in turn."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
