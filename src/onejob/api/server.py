"""The server of the standalone app: uvicorn with limits."""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING

import uvicorn

from onejob.api.auth import is_loopback
from onejob.api.http_limits import DEFAULT_LIMITS, BoundedProtocol, Limits
from onejob.api.logging_config import log_config
from onejob.errors import ConfigurationError

if TYPE_CHECKING:
    from types import FrameType

    from fastapi import FastAPI

    from onejob.api.app import Keys

SHUTDOWN_SECONDS = 5
"""How long open requests may continue after a signal to stop, since streams and waits can be long."""


def check_host(host: str, keys: Keys) -> None:
    """Raise `ConfigurationError` for a host that others can reach, unless there are API keys."""
    if keys is None and not is_loopback(host):
        msg = (
            f"without API keys the server binds to loopback only, not to {host}: create a key with "
            "`onejob keys add NAME --role submit --file keys.json`, and serve with --keys keys.json"
        )
        raise ConfigurationError(msg)


def serve(
    app: FastAPI,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    log_json: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> None:
    """Serve an app of `create_app` until SIGINT or SIGTERM. `check_host` tells whether it may be bound to the host."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=partial(BoundedProtocol, limits),  # type: ignore[arg-type] # called with keyword arguments only
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
    gc.freeze()  # else each full collection, which a large body causes, visits all that was imported: 0.2 s
    Server(config).run()
