"""The HTTP API: a router for a FastAPI app, or a standalone app. Requires `pip install "onejob[server]"`."""

from onejob.api.app import create_app, router

__all__ = ["create_app", "router"]
