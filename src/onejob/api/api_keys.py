"""API keys: random texts of 256 bits, of which a file keeps only the hashes, with a name and a role for each."""

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

MARK = "onejob_"
"""How a key begins, so that people and scanners of secrets know one when they see it."""
OTHERS_MAY_WRITE = 0o022


class Role(StrEnum):
    """What a key may do. Each role may do what those before it may."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"

    def includes(self, needed: Role) -> bool:
        """Tell whether this role may do what `needed` may."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True)
class Key:
    """What is kept of one key."""

    name: str
    role: Role
    sha256: str
    created_at: float
    quotas: Quotas = NO_QUOTAS

    def row(self) -> dict[str, Any]:
        """Return the key as the file has it."""
        known = {"name": self.name, "role": self.role, "sha256": self.sha256, "created_at": self.created_at}
        return known | {name: text for name, text in self.quotas.texts().items() if text is not None}


class KeyFile:
    """The keys in a JSON file, read again when the file changes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._seen: tuple[int, int, int] | None = None
        self._keys: tuple[Key, ...] = ()

    def read(self) -> tuple[Key, ...]:
        """Return the keys. Raises `ConfigurationError` when the file cannot be read or trusted."""
        try:
            found = self.path.stat()
            mark = (found.st_mtime_ns, found.st_size, found.st_ino)
            if mark != self._seen:
                self._keys = _parsed(self.path, found.st_mode)
                self._seen = mark
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            msg = f"the API keys in {self.path} cannot be used: {error}"
            raise ConfigurationError(msg) from error
        return self._keys

    def holder(self, text: str) -> Key | None:
        """Return whose key a text is. How long that takes tells nothing about the keys."""
        digest = _digest(text)
        found = [key for key in self.read() if hmac.compare_digest(key.sha256, digest)]
        return found[0] if found else None

    def add(self, name: str, role: Role, quotas: Quotas = NO_QUOTAS) -> str:
        """Add a key and return it; nobody can read it again.

        Raises `ConfigurationError` for a name that is taken, and for quotas of a key that may not ask for jobs.
        """
        check_name("an API key", name)
        known = self.read() if self.path.exists() else ()
        if any(key.name == name for key in known):
            msg = f"{self.path} has a key named {name!r} already: revoke it first, or take another name"
            raise ConfigurationError(msg)
        if quotas and not role.includes(Role.SUBMIT):
            msg = f"the role {role} asks for no jobs, so a quota has no meaning for it: drop it, or take role submit"
            raise ConfigurationError(msg)
        text = MARK + secrets.token_urlsafe(32)
        self._write([*known, Key(name, role, _digest(text), time.time(), quotas)])
        return text

    def revoke(self, name: str) -> None:
        """Take a key away. Raises `ConfigurationError` when there is none of this name."""
        known = self.read()
        left = [key for key in known if key.name != name]
        if len(left) == len(known):
            msg = f"{self.path} has no key named {name!r}"
            raise ConfigurationError(msg)
        self._write(left)

    def _write(self, keys: list[Key]) -> None:
        """Replace the file at once, so that nobody reads half of it."""
        number, part = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")  # made with mode 0600
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                json.dump([key.row() for key in keys], file, indent=2)
                file.flush()
                os.fsync(number)
            Path(part).replace(self.path)
        except BaseException:
            with suppress(OSError):
                Path(part).unlink()
            raise


def _parsed(path: Path, mode: int) -> tuple[Key, ...]:
    if mode & OTHERS_MAY_WRITE:
        msg = f"others than its owner may write it; say: chmod 600 {path}"
        raise ValueError(msg)
    rows = json.loads(path.read_text(encoding="utf-8"))
    return tuple(_key(row) for row in rows)


def _key(row: dict[str, Any]) -> Key:
    quotas = Quotas.parse(row.get("quota"), row.get("identity_quota"))
    return Key(row["name"], Role(row["role"]), str(row["sha256"]), float(row["created_at"]), quotas)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
