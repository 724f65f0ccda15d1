"""API keys: 256 random bits each. The key file stores only a hash of each key, with its name and permissions."""

import hashlib
import hmac
import json
import math
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, TypeAlias

from filelock import FileLock

from onejob.api.callers import Caller
from onejob.errors import ConfigurationError
from onejob.jobs.submitter import NO_QUOTAS, Quotas, check_name

PREFIX = "onejob_"
"""The beginning of every key, by which people and secret scanners recognize it."""
WRITABLE_BY_OTHERS = 0o022
Version: TypeAlias = tuple[int, ...]


class Role(StrEnum):
    """A role of an API key. Each role includes the roles before it."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"
    EDIT = "edit"
    """Redrive dead letters with other arguments."""

    def includes(self, needed: Self) -> bool:
        """Return whether this role has the permissions of `needed`."""
        return [*Role].index(self) >= [*Role].index(needed)


@dataclass(frozen=True, slots=True)
class Key:
    """An API key as the file stores it; times are seconds since the epoch."""

    name: str
    role: Role
    sha256: str
    """The hexadecimal digest of the key."""
    created_at: float
    expires_at: float | None = None
    """The time at which the key stops working; None: never."""
    own_jobs: bool = False
    tasks: frozenset[str] | None = None
    """The tasks that the key may submit and whose jobs it may see; None: all."""
    quotas: Quotas = NO_QUOTAS
    sessions_ended: int = 0
    """How often the key's dashboard sessions were ended; each session is signed with this number."""

    @property
    def expired(self) -> bool:
        """Whether the key no longer works."""
        return self.expires_at is not None and self.expires_at <= time.time()

    @property
    def caller(self) -> Caller:
        """The client that authenticates with this key."""
        return Caller(self.name, self.own_jobs, self.tasks, **self.quotas.texts())

    def row(self) -> dict[str, Any]:
        """Return the key as a JSON object of the file, without the fields that have no value."""
        fields = {
            "name": self.name, "role": self.role, "sha256": self.sha256, "created_at": self.created_at,
            "expires_at": self.expires_at, "own_jobs": self.own_jobs or None,
            "tasks": None if self.tasks is None else sorted(self.tasks), **self.quotas.texts(),
            "sessions_ended": self.sessions_ended or None,
        }  # fmt: skip
        return {name: value for name, value in fields.items() if value is not None}


class KeyFile:
    """The API keys in a JSON file, which is reloaded when it changes. Many processes may change it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._loaded: tuple[Version, tuple[Key, ...]] | None = None
        """The keys, and the version of the file that they were read from."""

    def read(self, *, manages: bool = False) -> tuple[Key, ...]:
        """Return the keys. Raises `ConfigurationError` if the file is unreadable or invalid, or others may change it.

        `manages`: read for an operator, who as root manages the files of all users; a server trusts only some users.
        """
        try:
            loaded = self._loaded
            if loaded is None or loaded[0] != _version_of(self.path.stat()):
                loaded = self._loaded = _load(self.path, any_owner=manages and os.geteuid() == 0)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigurationError(f"the API keys in {self.path} cannot be used: {error}") from error
        return loaded[1]

    def find(self, text: str) -> Key | None:
        """Return the key with this text, None if there is none. The comparison takes constant time."""
        digest = _digest(text)
        matching = [key for key in self.read() if hmac.compare_digest(key.sha256, digest)]
        return matching[0] if matching else None

    def add(
        self,
        name: str,
        role: Role,
        quotas: Quotas = NO_QUOTAS,
        *,
        expires_at: float | None = None,
        own_jobs: bool = False,
        tasks: Collection[str] | None = None,
    ) -> str:
        """Add a key and return its text, which the file does not store. The parameters are fields of `Key`.

        Raises `ConfigurationError` for a name that is already in use, and for quotas of a role that cannot submit jobs.
        """
        check_name("the name of an API key", name)
        if quotas and not role.includes(Role.SUBMIT):
            msg = f"the role {role} cannot submit jobs, so it cannot have a quota: omit the quota, or use role submit"
            raise ConfigurationError(msg)
        only = None if tasks is None else frozenset(tasks)
        with self._changing() as keys:
            if any(key.name == name for key in keys):
                msg = f"{self.path} already has a key named {name!r}: rotate or revoke it, or choose another name"
                raise ConfigurationError(msg)
            return _append(keys, Key(name, role, "", time.time(), expires_at, own_jobs, only, quotas))

    def rotate(self, name: str, overlap: float, expires_at: float | None = None) -> str:
        """Replace a key by a new one with the same name and permissions, and return its text.

        The former key works for `overlap` more seconds; its sessions of the dashboard end now. The new key expires at
        `expires_at`; without it, the new key is valid for as long as the former one was.

        Raises `ConfigurationError` if there is no key of this name.
        """
        now = time.time()
        with self._changing() as keys:
            former = [key for key in keys if key.name == name]
            if not former:
                raise self._no_key(name)
            latest = former[-1]
            if expires_at is None and latest.expires_at is not None:
                expires_at = now + latest.expires_at - latest.created_at
            ends = [now + overlap if key.expires_at is None else min(key.expires_at, now + overlap) for key in former]
            ending = [_without_sessions(replace(key, expires_at=end)) for key, end in zip(former, ends, strict=True)]
            keys[:] = [key for key in keys if key.name != name] + [key for key in ending if not key.expired]
            return _append(keys, replace(latest, created_at=now, expires_at=expires_at))

    def revoke(self, name: str) -> None:
        """Remove all keys of a name, also former ones. Raises `ConfigurationError` if no key has this name."""
        with self._changing() as keys:
            remaining = [key for key in keys if key.name != name]
            if len(remaining) == len(keys):
                raise self._no_key(name)
            keys[:] = remaining

    def end_sessions(self, name: str) -> None:
        """End all dashboard sessions of a key. Raises `ConfigurationError` if no key has this name."""
        with self._changing() as keys:
            if all(key.name != name for key in keys):
                raise self._no_key(name)
            keys[:] = [_without_sessions(key) if key.name == name else key for key in keys]

    @contextmanager
    def _changing(self) -> Iterator[list[Key]]:
        """Yield the keys, and store the changed list, while no other process changes the file."""
        target = Path(os.path.realpath(self.path))  # a symbolic link remains a symbolic link
        lock = target.with_name(f".{target.name}.lock")  # a separate file, since a change replaces the key file itself
        try:
            with FileLock(lock, mode=0o600):
                _copy_owner(target, lock)
                keys = list(self.read(manages=True)) if target.exists() else []
                yield keys
                replace_file(target, json.dumps([key.row() for key in keys], indent=2))
        except OSError as error:
            raise ConfigurationError(f"the API keys in {self.path} cannot be changed: {error}") from error

    def _no_key(self, name: str) -> ConfigurationError:
        return ConfigurationError(f"{self.path} has no key named {name!r}")


def _append(keys: list[Key], key: Key) -> str:
    text = PREFIX + secrets.token_urlsafe(32)
    keys.append(replace(key, sha256=_digest(text)))
    return text


def _without_sessions(key: Key) -> Key:
    return replace(key, sessions_ended=key.sessions_ended + 1)


def _version_of(found: os.stat_result) -> Version:
    return (
        found.st_dev, found.st_ino, found.st_nlink, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )  # fmt: skip


def _load(path: Path, *, any_owner: bool) -> tuple[Version, tuple[Key, ...]]:
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if found.st_mode & WRITABLE_BY_OTHERS:
            raise ValueError(f"it is writable by other users: run chmod 600 {path}")
        _check_place(path, 0 if any_owner else found.st_uid)
        if not found.st_nlink:
            raise ValueError("it was replaced, and only the former file is mounted here: mount its directory instead")
        return _version_of(found), tuple(_key_from(row) for row in json.loads(file.read()))


def _check_place(path: Path, owner: int) -> None:
    """Raise `ValueError` if a user whom the server has no reason to trust owns the file, or may replace it.

    Root, the user of the server, and the owner of the folder are trusted: the latter can always replace the file.
    """
    folders = {path.parent, Path(os.path.realpath(path)).parent}  # the folders of a symbolic link and of the file
    trusted = {0, os.geteuid()}
    for folder in folders:
        found = folder.stat()
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise ValueError(f"everybody may replace it, since its folder is writable by all: run chmod o-w {folder}")
        trusted.add(found.st_uid)
    if owner not in trusted:
        raise ValueError(
            f"it belongs to the user {owner}, who is neither root, nor the user of this process ({os.geteuid()}), nor "
            f"the owner of its folder: run chown root {path}, and let the group of the server read it"
        )


def _key_from(row: dict[str, Any]) -> Key:
    tasks, own_jobs, expires_at = row.get("tasks"), row.get("own_jobs", False), row.get("expires_at")
    sessions_ended = row.get("sessions_ended", 0)
    check_name("the name of an API key", row["name"])
    if not isinstance(own_jobs, bool) or not isinstance(tasks, list | None):
        raise TypeError(f"own_jobs of {row['name']!r} must be true or false, and tasks a list of names")
    if not isinstance(sessions_ended, int) or isinstance(sessions_ended, bool) or sessions_ended < 0:
        raise TypeError(f"sessions_ended of {row['name']!r} must be a count, not {sessions_ended!r:.100}")
    times = [float(each) for each in (row["created_at"], expires_at) if each is not None]
    if not all(map(math.isfinite, times)):
        raise ValueError(f"the times of {row['name']!r} must be numbers of seconds since the epoch")
    return Key(
        row["name"], Role(row["role"]), bytes.fromhex(row["sha256"]).hex(), times[0],
        expires_at=None if expires_at is None else times[1], own_jobs=own_jobs,
        tasks=None if tasks is None else frozenset(tasks),
        quotas=Quotas.parse(row.get("quota"), row.get("identity_quota")), sessions_ended=sessions_ended,
    )  # fmt: skip


def _digest(text: str) -> str:
    """Return the digest of a key, which is the same in key files of all versions of this module."""
    inner = hashlib.sha256(b"onejob session " + text.encode("utf-8", "replace")).hexdigest()
    return hashlib.sha256(inner.encode()).hexdigest()


def replace_file(path: Path, text: str) -> None:
    """Replace the content of a file atomically and durably; it keeps its mode and owner, a new one is private."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # has mode 0600
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if path.exists():
                _copy_owner(path, temporary)
                temporary.chmod(path.stat().st_mode & 0o777)
            os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_owner(path: Path, other: Path) -> None:
    """Give `other` the owner of the file `path`, if that exists, so that its owner can use both."""
    if not path.exists():
        return
    wanted, present = path.stat(), other.lstat()
    if (wanted.st_uid, wanted.st_gid) != (present.st_uid, present.st_gid):
        os.chown(other, wanted.st_uid, wanted.st_gid, follow_symlinks=False)
