"""The HTTP API: a router for a FastAPI app, or a standalone app. Requires `pip install "onejob[server]"`."""

from onejob.errors import needs_extra

with needs_extra("server", "the HTTP API"):
    from onejob.api.app import create_app, router
    from onejob.api.callers import Caller

__all__ = ["Caller", "create_app", "router"]
