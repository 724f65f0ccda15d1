"""A shop in Flask: an app factory, Celery, a task whose equal calls run once, and the dashboard."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from celery import Celery
from flask import Flask, redirect, request, session, url_for
from werkzeug.middleware.dispatcher import DispatcherMiddleware

import onejob
from shop.orders import orders

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from werkzeug import Response

STAFF = {"olga": "operate", "rita": "read"}
"""Who may see the dashboard, and with which role."""


def create_app(config: Mapping[str, Any] | None = None) -> Flask:
    """Return the app; `config` and the environment (`FLASK_CELERY__broker_url`) replace the settings here."""
    app = Flask(__name__)
    app.config.from_mapping(
        SECRET_KEY=secrets.token_urlsafe(),  # FLASK_SECRET_KEY replaces it; without one a restart ends all sessions
        CELERY={"broker_url": "redis://localhost:6379/0", "broker_connection_retry_on_startup": True},
    )
    app.config.from_prefixed_env()
    app.config.from_mapping(config or {})
    celery_app = celery_init_app(app)
    app.register_blueprint(orders)
    app.add_url_rule("/login", view_func=login, methods=["GET", "POST"])
    mount_dashboard(app, celery_app)
    return app


def celery_init_app(app: Flask) -> Celery:
    """Return the Celery app of a Flask app."""
    celery_app = Celery(app.name)
    celery_app.config_from_object(app.config["CELERY"])
    celery_app.flask_app = app
    celery_app.set_default()
    app.extensions["celery"] = celery_app
    return celery_app


def mount_dashboard(app: Flask, celery_app: Celery) -> None:
    """Mount the dashboard below /onejob, for the staff."""

    def authorize(incoming: Request) -> Any:
        with app.request_context(incoming.scope["wsgi_environ"]):
            user = session.get("user")
        return (user, STAFF[user]) if user in STAFF else None

    pages = onejob.wsgi_dashboard(celery_app, authorize=authorize)
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/onejob": pages})


def login() -> str | Response:
    """Log in, by a name alone, as an example may."""
    if request.method == "POST":
        session["user"] = request.form["user"]
        return redirect(url_for("orders.show_form"))
    return '<form method="post"><label>Name <input name="user"></label> <button>Log in</button></form>'
