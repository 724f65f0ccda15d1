"""The origin of an HTTP request: this machine or another machine, a page of this origin or of another origin.

The API and a worker's metrics port, which is no route of the API, share these rules.
"""

from __future__ import annotations

import ipaddress
import re

LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
FOREIGN_SITES = frozenset({"cross-site", "same-site"})
"""The values of `Sec-Fetch-Site` for pages of other origins, also for pages of another port of this host."""


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's loopback interface."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def without_port(host: str) -> str:
    """Return the name in a `Host` header, lower case."""
    return re.sub(r":\d+$", "", host).lower()
