"""The text of a lock as celery-singleton makes it, so that both libraries name the same lock."""

import hashlib
import json
from typing import Any


def generate_lock(
    task_name: str,
    task_args: Any = None,
    task_kwargs: Any = None,
    key_prefix: str = "SINGLETONLOCK_",
    json_encoder_class: type[json.JSONEncoder] | None = None,
) -> str:
    """Return the prefix and the MD5 of a task's name and arguments.

    Raises `TypeError` for arguments that are no JSON.
    """
    parts = [task_args or [], task_kwargs or {}]
    text = task_name + "".join(json.dumps(part, sort_keys=True, cls=json_encoder_class) for part in parts)
    return key_prefix + hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
