"""The logging of the server: uvicorn's, with the events of jobs, and without API keys that clients put into URLs."""

from __future__ import annotations

import logging
import re
from copy import deepcopy
from typing import Any
from urllib.parse import unquote

from onejob.observability.audit import API_KEY, REDACTED

_SECRET_PARAMETER = re.compile(r"(?:^|[&;])[^=&;]*(?:key|token|secret|passw|auth|credential)", re.IGNORECASE)


def log_config(*, as_json: bool) -> dict[str, Any]:
    """Return the logging configuration of the server; `as_json`: one JSON object per line."""
    from uvicorn.config import LOGGING_CONFIG

    config: dict[str, Any] = deepcopy(LOGGING_CONFIG)
    config["loggers"]["onejob"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    config["filters"] = {"urls": {"()": f"{__name__}.RedactURLs"}}
    config["handlers"]["access"]["filters"] = ["urls"]
    if as_json:
        config["formatters"] = {
            name: {"()": "onejob.observability.logs.JsonFormatter"} for name in config["formatters"]
        }
    return config


class RedactURLs(logging.Filter):
    """Removes API keys from the records of uvicorn's access log, whose third argument is the URL."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the URL, and keep the record."""
        match record.args:
            case (client, method, str(url), *rest):
                record.args = (client, method, redact_url(url), *rest)
        return True


def redact_url(url: str) -> str:
    """Return a path and query without API keys: a query that may have one, or another secret, is left out."""
    path, mark, query = url.partition("?")
    decoded = unquote(query)
    if API_KEY.search(decoded) or _SECRET_PARAMETER.search(decoded):
        query = REDACTED
    return API_KEY.sub(REDACTED, path) + mark + query
