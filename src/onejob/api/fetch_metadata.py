"""The origin of a request as its browser states it: pages of other sites may link here, and request nothing else.

Source: W3C, Fetch Metadata Request Headers. Clients that are no browsers do not send these headers.
"""

from collections.abc import Iterable
from typing import TypeAlias

from onejob.api.problems import Problem
from onejob.observability.request_origin import FOREIGN_SITES

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]
SAFE_METHODS = frozenset({"GET", "HEAD"})
NAMES = frozenset({b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"sec-purpose"})


def foreign_site(method: str, headers: Headers) -> str:
    """Return the site of a request by a page of another origin; "" for a link that a person follows, and for others.

    A page of another origin cannot read the response, but it can measure its time, and repeat slow requests.
    """
    sent = {name: value.decode("latin-1").lower() for name, value in headers if name in NAMES}
    site = sent.get(b"sec-fetch-site", "")
    if site not in FOREIGN_SITES:
        return ""
    is_navigation = sent.get(b"sec-fetch-mode") == "navigate" and sent.get(b"sec-fetch-dest") == "document"
    return "" if is_navigation and method in SAFE_METHODS and b"sec-purpose" not in sent else site


def check_site(method: str, headers: Headers) -> None:
    """Raise `Problem` for a page that another origin requests, unless a person followed a link.

    Other methods need no check here: they send forms, which have a token.
    """
    site = foreign_site(method, headers) if method in SAFE_METHODS else ""
    if site:
        detail = (
            f"a page of another origin has requested this one (sec-fetch-site: {site}), which only pages of this "
            "dashboard may: open it in the browser itself"
        )
        raise Problem("forbidden", detail)
