"""The dashboard: server-rendered pages of a ledger. Requires `pip install "onejob[server]"`."""

from onejob.api.api_keys import Role
from onejob.pages.access import User
from onejob.pages.app import dashboard

__all__ = ["Role", "User", "dashboard"]
