"""What a user of Django may do with jobs, as a role of the dashboard."""

from __future__ import annotations

from typing import Any

from onejob.api.api_keys import Role
from onejob.pages.access import User

PERMISSIONS = {
    "onejob.edit_job": Role.EDIT,
    "onejob.operate_job": Role.OPERATE,
    "onejob.view_job": Role.READ,
}
"""The permissions, and the role of a user who has one. Each role includes those below it."""


def user_of(user: Any) -> User | None:
    """Return an active user of Django as a user of the dashboard; None without a permission for jobs.

    Raises `InvalidArgumentsError` for a user name that cannot be recorded.
    """
    role = next((role for permission, role in PERMISSIONS.items() if user.has_perm(permission)), None)
    return None if role is None else User(user.get_username(), role)
