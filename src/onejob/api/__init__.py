"""Jobs over HTTP: a router for a FastAPI app, or an app of its own. Needs `pip install "onejob[server]"`."""

from onejob.api.app import create_app, router, serve

__all__ = ["create_app", "router", "serve"]
