"""Checks of SQLite: the place of the file, and the hosts that use it."""

import re
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from shlex import quote

from onejob.health.finding import Check, Finding, Installation, Level, or_ok, with_address
from onejob.stores import kind_of, sqlite_path
from onejob.stores.django_database import resolve

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "afs", "ocfs2", "gfs2", "beegfs",
    "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "virtiofs",
})  # fmt: skip
"""Types of file systems whose locks, or shared memory, SQLite cannot rely on."""

READABLE_BY_OTHERS = 0o066

# fmt: off
NETWORK_FILE = Check("sqlite-network", "sqlite", Level.ERROR,
    when="the file is on a network file system",
    meaning="SQLite's locks and its write-ahead log need one machine: two jobs may hold one identity, and the file may "
    "be corrupted",
    remedy="move the file to a local disk, or the ledger to PostgreSQL or Redis: onejob_store")
HOSTS = Check("sqlite-hosts", "sqlite", Level.ERROR,
    when="live workers of the ledger run on several hosts",
    meaning="a SQLite file cannot be shared by machines or containers without one file system: as above",
    remedy="run all workers on the machine of the file, or move the ledger to PostgreSQL or Redis: onejob_store")
JOURNAL = Check("sqlite-journal", "sqlite", Level.WARNING,
    when="the journal mode of the file is not WAL",
    meaning="readers and writers wait for each other: submissions and heartbeats are slow, and may fail as busy",
    remedy="check that the folder of the file is writable by the workers, and that the file system has shared memory; "
    "then `sqlite3 FILE 'pragma journal_mode = wal'`")
MODE = Check("sqlite-mode", "sqlite", Level.WARNING,
    when="other users may read or write the file",
    meaning="arguments and results are readable by every user of the machine; whoever may write owns the ledger",
    remedy="`chmod 600 FILE FILE-wal FILE-shm`, as the user of the workers")
# fmt: on


def examine(installation: Installation) -> Iterator[Finding]:
    """Examine the file of the ledger, and the hosts of its workers."""
    if kind_of(installation.settings.store) != "sqlite":
        return
    path = Path(sqlite_path(resolve(installation.settings.store))).resolve()
    mounts = MOUNTS.read_text() if MOUNTS.exists() else ""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        journal = connection.execute("pragma journal_mode").fetchone()[0]
    hosts = sorted({worker.name.rpartition("@")[2] for worker in installation.ledger.workers()})
    findings = chain(
        [HOSTS.found(f"live workers on {len(hosts)} hosts: {', '.join(hosts[:5])}")] if len(hosts) > 1 else [],
        check_file(path, file_system_of(path, mounts), journal, path.stat().st_mode),
    )
    found = with_address(findings, "FILE", quote(str(path)))
    yield from or_ok(found, "sqlite", f"{path} is local, its journal mode is {journal}")


def file_system_of(path: Path, mounts: str) -> str:
    """Return the type of the file system of a path, by the text of /proc/self/mountinfo; "" if it is unknown."""
    found = "", ""
    for line in mounts.splitlines():
        own, _, source = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), own.split()[4])
        if path.is_relative_to(point) and len(point) >= len(found[0]):
            found = point, source.split()[0]
    return found[1]


def check_file(path: Path, file_system: str, journal: str, mode: int) -> Iterator[Finding]:
    """Check the type of the file's file system, its journal mode, and its mode."""
    if file_system in NETWORK:
        yield NETWORK_FILE.found(f"{path} is on a file system of the type {file_system}")
    if journal != "wal":
        yield JOURNAL.found(f"the journal mode of {path} is {journal}")
    if mode & READABLE_BY_OTHERS:
        yield MODE.found(f"the mode of {path} is {stat.filemode(mode)}")
