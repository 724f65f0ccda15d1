"""The server of the standalone app: uvicorn, its limits on what one connection can cost, and its logging.

uvicorn itself has few limits. The log has the events of jobs, and no API keys that clients put into URLs.
"""

import gc
import logging
import re
from asyncio import TimerHandle, Transport
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any
from urllib.parse import unquote

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from onejob.api.app import Keys
from onejob.api.checked_request import BODY_LIMIT
from onejob.api.problems import Problem
from onejob.api.root_path import RootPath, check_root_path
from onejob.errors import ConfigurationError
from onejob.observability.logs import API_KEY
from onejob.observability.request_origin import is_loopback
from onejob.stores.urls import REDACTED

HEAD_LIMIT = 64 * 1024
"""The maximum number of bytes of a request besides its body: the limit of h11, uvicorn's other parser, for headers."""
FRAMING_ALLOWANCE = 16
"""The number of bytes of chunked framing that each byte of a body allows."""
UNREAD_BODY_LIMIT = 2 * BODY_LIMIT
"""The size of a body, in bytes, at which the connection is closed. The app refuses a smaller one with a problem."""
PIPELINE_LIMIT = 16
"""How many requests of one connection may wait for the response to an earlier request."""
SPARE_CONNECTIONS = 100
"""How many connections above the limit are accepted, for health checks and for responses that refuse a request."""
LINGER, LINGER_LIMIT = 2.0, 8 * 1024 * 1024
"""The seconds and the bytes for which a refused client may go on sending: a reset would discard the response."""
LIVENESS_PATH = "/healthz"
"""The path that is served also under overload: restarting a busy server makes it busier."""
TOO_LONG = Problem("bad-request", f"a request must not have more than {HEAD_LIMIT} bytes besides its body")
RETRY_AFTER = {"retry-after": "1", "connection": "close"}
OVERLOADED: ASGIApp = Problem("overloaded", "the server handles too many requests", headers=RETRY_AFTER).response()
"""Responds with 503 in place of the app."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the server: `connections` and requests at once, and the seconds that a slow client has."""

    connections: int = 1000
    head: float = 10.0
    """Seconds from the first byte of a request to the end of its headers."""
    body: float = 30.0
    """Seconds from the end of the headers to the end of the body."""
    response: float = 60.0
    """Seconds for which a client may leave a full buffer unread."""


DEFAULT_LIMITS = Limits()


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits on time, on bytes besides the body, on pipelined requests and on connections."""

    def __init__(self, limits: Limits, root_path: str = "", **arguments: Any) -> None:
        super().__init__(**arguments)
        self._limits = limits
        self._liveness = {path.encode() for path in (LIVENESS_PATH, root_path + LIVENESS_PATH)}
        self._running: Any = None
        """The cycle of the request whose response is sent; `cycle` is that of the latest one, which may wait for it."""
        self._request = 0
        self._received_head = False
        self._received_all = False
        """No byte of a request is outstanding. False on a new connection, which has to send one."""
        self._overhead = 0
        self._is_long = False
        """Whether the head may be too long. `_overhead` begins anew with each message of one read."""
        self._body = 0
        self._problem: Problem | None = None
        self._lingers = False
        """Whether the response that refuses the request was sent, and what else arrives is dropped."""
        self._awaited: tuple[int, bool] | None = None
        """The request, and whether its head has been received, for which `_deadline` was set."""
        self._deadline: TimerHandle | None = None
        self._response_deadline: TimerHandle | None = None

    # --- connections --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as in the base class
        """Begin to wait for a request; abort the connection if there are too many even for a response."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections + SPARE_CONNECTIONS:
            transport.abort()
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadlines, and tell the app that the client has disconnected."""
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()
        self._received_all = True
        self._set_deadline()
        self._cancel_response_deadline()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Limit the time for which a client leaves the buffer of its response full."""
        super().pause_writing()
        self._response_deadline = self.loop.call_later(self._limits.response, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the time limit: the client has read its buffer."""
        super().resume_writing()
        self._cancel_response_deadline()

    def _cancel_response_deadline(self) -> None:
        if self._response_deadline is not None:
            self._response_deadline.cancel()
            self._response_deadline = None

    # --- receiving ----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse the received bytes; refuse the request if too many of them are not part of its body."""
        if self._lingers:
            self._overhead += len(data)
            if self._overhead > LINGER_LIMIT:
                self.transport.abort()
            return
        if self._received_all and (self.cycle is None or self.cycle.response_complete):
            self._begin_request()
        self._overhead += len(data)
        self._is_long = self._overhead > HEAD_LIMIT
        super().data_received(data)
        self._overhead = max(self._overhead, 0)  # a body that nobody reads must not allow trailers of its size
        if self._overhead > HEAD_LIMIT:
            self._refuse(TOO_LONG)
        self._set_deadline()

    def eof_received(self) -> bool:  # type: ignore[override] # as in asyncio
        """Return whether a client that has closed its sending side gets the response: only to a POST.

        Other requests may wait for long, and learn in this way alone that their client has disconnected.
        """
        cycle = self.cycle
        if not self._received_all or self.pipeline or cycle.response_complete or cycle.scope["method"] != "POST":
            return False
        cycle.keep_alive = False
        return True

    def on_message_begin(self) -> None:
        """Reset the counts for a new request, unless too many requests wait already."""
        if len(self.pipeline) >= PIPELINE_LIMIT:
            self._raise(Problem("bad-request", f"more than {PIPELINE_LIMIT} requests wait for a response"))
        self._begin_request()
        super().on_message_begin()

    def _begin_request(self) -> None:
        self._request += 1
        self._received_head = self._received_all = False
        self._overhead = self._body = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, and drop a trailer."""
        if not self._received_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request, or refuse it if its head is too long, or too many are in progress."""
        if self._is_long and len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > HEAD_LIMIT:
            self._raise(TOO_LONG)
        self._received_head = True
        busy = max(len(self.connections), len(self.tasks)) > self._limits.connections
        self.app = OVERLOADED if busy and self.url not in self._liveness else self.config.loaded_app
        super().on_headers_complete()
        if not self.pipeline:
            self._running = self.cycle

    def on_response_complete(self) -> None:
        """Start the next request that waits."""
        if self.pipeline:
            self._running = self.pipeline[-1][0]
        super().on_response_complete()

    def on_body(self, body: bytes) -> None:
        """Subtract a part of the body and the framing that it allows; refuse a body that is too large to be read."""
        self._overhead -= (1 + FRAMING_ALLOWANCE) * len(body)
        self._body += len(body)
        if self._body > UNREAD_BODY_LIMIT:
            self._raise(Problem("too-large", f"the body has more than {BODY_LIMIT} bytes"))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Reset the count: the bytes that follow belong to another request."""
        super().on_message_complete()
        self._received_all = True
        self._overhead = 0

    # --- refusing -----------------------------------------------------------------------------------------------------

    def _set_deadline(self) -> None:
        """Set the deadline for the client's next bytes, unless it is set; cancel it if no bytes are expected."""
        awaited = None if self._received_all else (self._request, self._received_head)
        if awaited == self._awaited:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        seconds = self._limits.body if self._received_head else self._limits.head
        self._deadline = self.loop.call_later(seconds, self._end_slow_request) if awaited else None
        self._awaited = awaited

    def _end_slow_request(self) -> None:
        part, seconds = ("body", self._limits.body) if self._received_head else ("headers", self._limits.head)
        self._refuse(Problem("request-timeout", f"the {part} of the request did not arrive within {seconds:g} s"))

    def _raise(self, problem: Problem) -> None:
        """Stop the parser, which then calls `send_400_response`."""
        self._problem = problem
        raise ValueError(problem.detail)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that the parser has refused."""
        self._refuse(self._problem or Problem("bad-request", msg))

    def _refuse(self, problem: Problem) -> None:
        """Close the connection; respond first, unless the client could take that for an earlier request's response."""
        if self._lingers or self.transport.is_closing():
            return
        cycle = self.cycle
        is_idle = cycle is None or cycle.response_complete
        is_next = not self._received_head if is_idle else self._received_head and not cycle.response_started
        if is_next and not self.pipeline:
            response = problem.response()
            lines = b"".join(b"%b: %b\r\n" % header for header in response.raw_headers)
            head = STATUS_LINE[response.status_code] + lines + b"connection: close\r\n\r\n"
            self.transport.write(head + bytes(response.body))
            self._lingers = True
        if cycle is not None:
            cycle.disconnected = True  # the app must not respond as well
            cycle.message_event.set()
        if not self._lingers:
            self.transport.close()
            return
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER, self.transport.close)


_SECRET_PARAMETER = re.compile(r"(?:^|[&;])[^=&;]*(?:key|token|secret|passw|auth|credential)", re.IGNORECASE)


def log_config(*, as_json: bool) -> dict[str, Any]:
    """Return the logging configuration of the server; `as_json`: one JSON object per line."""
    from uvicorn.config import LOGGING_CONFIG

    config: dict[str, Any] = deepcopy(LOGGING_CONFIG)
    config["loggers"]["onejob"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    config["filters"] = {"urls": {"()": f"{__name__}.RedactURLs"}}
    config["handlers"]["access"]["filters"] = ["urls"]
    if as_json:
        formatter = "onejob.observability.logs.JsonFormatter"
        config["formatters"] = {name: {"()": formatter} for name in config["formatters"]}
    return config


class RedactURLs(logging.Filter):
    """Removes API keys from the records of uvicorn's access log, whose third argument is the URL."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the URL, without its query if that may have a key or another secret, and keep the record."""
        match record.args:
            case (client, method, str(url), *rest):
                path, mark, query = url.partition("?")
                decoded = unquote(query)
                if API_KEY.search(decoded) or _SECRET_PARAMETER.search(decoded):
                    query = REDACTED
                record.args = (client, method, API_KEY.sub(REDACTED, path) + mark + query, *rest)
        return True


SHUTDOWN_SECONDS = 5
"""Seconds for which open requests may continue after a signal to stop, since streams and waits can be long."""


def check_host(host: str, keys: Keys, root_path: str = "") -> None:
    """Raise `ConfigurationError` for a host that other machines can reach, or a proxy, unless there are API keys."""
    if keys is None and root_path:
        raise ConfigurationError(
            "--root-path is the path of a proxy, which makes every client one of this machine, so the server needs "
            "API keys: create one with `onejob keys add NAME --role submit --file keys.json`, and serve with --keys "
            "keys.json"
        )
    if keys is None and not is_loopback(host):
        raise ConfigurationError(
            f"without API keys the server binds to loopback only, not to {host}: create a key with "
            "`onejob keys add NAME --role submit --file keys.json`, and serve with --keys keys.json"
        )


def serve(
    app: FastAPI,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    log_json: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    root_path: str = "",
) -> None:
    """Serve an app of `create_app` until SIGINT or SIGTERM. `check_host` tells whether it may be bound to the host.

    `root_path`: the path below which a proxy publishes it. Raises `ConfigurationError` for an invalid one.
    """
    if root_path:
        check_root_path(root_path, app)
    config = uvicorn.Config(
        RootPath(app, root_path) if root_path else app,
        host=host,
        port=port,
        http=partial(BoundedProtocol, limits, root_path),  # type: ignore[arg-type] # called with keyword arguments only
        ws="none",
        log_level="info",
        log_config=log_config(as_json=log_json),
        server_header=False,
        proxy_headers=False,  # whether a client is local is decided by its connection, not by a header
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )

    class Server(uvicorn.Server):
        """uvicorn's server, which ends waits and streams on shutdown."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """Begin the shutdown."""
            app.state.closing.set()
            super().handle_exit(sig, frame)

    gc.collect()
    gc.freeze()  # else each full collection, which a large body causes, visits all imported objects: 0.2 s
    Server(config).run()
