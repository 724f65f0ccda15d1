"""API keys: 256 random bits each. The key file stores only a hash of each key, with its name, role and quotas."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from onejob.api.quotas import NO_QUOTAS, Quotas
from onejob.errors import ConfigurationError
from onejob.jobs.submitter import check_name

PREFIX = "onejob_"
"""Every key begins with this, so that people and secret scanners recognize one."""
WRITABLE_BY_OTHERS = 0o022


class Role(StrEnum):
    """A role of an API key. Each role includes those before it."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"

    def includes(self, needed: Role) -> bool:
        """Return whether this role has the permissions of `needed`."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True)
class Key:
    """An API key as the file stores it: `sha256` is the hexadecimal digest of the key."""

    name: str
    role: Role
    sha256: str
    created_at: float
    quotas: Quotas = NO_QUOTAS

    def row(self) -> dict[str, Any]:
        """Return the key as a JSON object of the file."""
        fields = {"name": self.name, "role": self.role, "sha256": self.sha256, "created_at": self.created_at}
        return fields | {name: text for name, text in self.quotas.texts().items() if text is not None}


class KeyFile:
    """The API keys in a JSON file, which is reloaded when it changes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._version: tuple[int, int, int] | None = None
        """The time of modification, size and inode of the file when it was last read."""
        self._keys: tuple[Key, ...] = ()

    def read(self) -> tuple[Key, ...]:
        """Return the keys. Raises `ConfigurationError` if the file is unreadable, invalid or writable by others."""
        try:
            stat = self.path.stat()
            version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if version != self._version:
                self._keys = _read_keys(self.path, stat.st_mode)
                self._version = version
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            msg = f"the API keys in {self.path} cannot be used: {error}"
            raise ConfigurationError(msg) from error
        return self._keys

    def find(self, text: str) -> Key | None:
        """Return the key with this text, None if there is none. The comparison takes constant time."""
        digest = _digest(text)
        matching = [key for key in self.read() if hmac.compare_digest(key.sha256, digest)]
        return matching[0] if matching else None

    def add(self, name: str, role: Role, quotas: Quotas = NO_QUOTAS) -> str:
        """Add a key and return its text, which the file does not store.

        Raises `ConfigurationError` for a name that is already in use, and for quotas of a role that cannot submit jobs.
        """
        check_name("an API key", name)
        keys = self.read() if self.path.exists() else ()
        if any(key.name == name for key in keys):
            msg = f"{self.path} already has a key named {name!r}: revoke it first, or choose another name"
            raise ConfigurationError(msg)
        if quotas and not role.includes(Role.SUBMIT):
            msg = f"the role {role} cannot submit jobs, so it cannot have a quota: omit the quota, or use role submit"
            raise ConfigurationError(msg)
        text = PREFIX + secrets.token_urlsafe(32)
        self._write([*keys, Key(name, role, _digest(text), time.time(), quotas)])
        return text

    def revoke(self, name: str) -> None:
        """Remove a key. Raises `ConfigurationError` if there is none of this name."""
        keys = self.read()
        remaining = [key for key in keys if key.name != name]
        if len(remaining) == len(keys):
            msg = f"{self.path} has no key named {name!r}"
            raise ConfigurationError(msg)
        self._write(remaining)

    def _write(self, keys: list[Key]) -> None:
        """Replace the file atomically."""
        descriptor, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")  # has mode 0600
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump([key.row() for key in keys], file, indent=2)
                file.flush()
                os.fsync(descriptor)
            Path(temporary).replace(self.path)
        except BaseException:
            with suppress(OSError):
                Path(temporary).unlink()
            raise


def _read_keys(path: Path, mode: int) -> tuple[Key, ...]:
    if mode & WRITABLE_BY_OTHERS:
        msg = f"it is writable by other users: run chmod 600 {path}"
        raise ValueError(msg)
    rows = json.loads(path.read_text(encoding="utf-8"))
    return tuple(_key_from(row) for row in rows)


def _key_from(row: dict[str, Any]) -> Key:
    quotas = Quotas.parse(row.get("quota"), row.get("identity_quota"))
    return Key(row["name"], Role(row["role"]), str(row["sha256"]), float(row["created_at"]), quotas)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
