"""What `deploy/` has for production works: its secrets, its roles, its Redis. `checks/` reads the files."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest
import redis
import yaml
from click.testing import CliRunner

from checks.project import ROOT
from onejob import cli
from onejob.cli.commands import main
from onejob.errors import StoreError
from onejob.jobs.broker_messages import NewMessage
from onejob.ledger.reader import AUDIT_LIMIT, AUDIT_SECONDS
from onejob.stores import open_store
from onejob.stores.migrate import upgrade
from onejob.stores.protocol import MessageStore
from tests.cli.command import call
from tests.services import PostgresServer, client_program, eventually, free_port, redis_binary, start_postgres
from tests.stores.lockstep import LockStep
from tests.stores.support import ManualClock, StoreAddress, submit
from tests.stores.test_records import ENTRY
from tests.stores.test_sequences import SEQUENCES, Script
from tests.tiers import deep

DEPLOY = ROOT / "deploy"


def test_the_services_have_passwords_of_their_own(tmp_path: Path) -> None:
    """`make-secrets` makes every secret of the Compose file once, for its owner alone."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    folder = tmp_path / "secrets"
    script = tmp_path / "make-secrets"
    shutil.copy(DEPLOY / "make-secrets", script)
    keys = tmp_path / "onejob"
    keys.write_text(f"#!/bin/sh\necho key\ntouch {folder}/server/keys.json\n")
    keys.chmod(0o700)
    folder.mkdir(0o700)
    (folder / "postgres-password").write_text("kept\n")
    for _ in range(2):
        subprocess.run([script, keys], check=True, capture_output=True)
    made = {name: (tmp_path / each["file"]).read_text().strip() for name, each in compose["secrets"].items()}
    assert made.pop("postgres-password") == "kept"
    passwords = {name: re.search(r":([0-9a-f]{64})@", text) for name, text in made.items()}
    assert len({password[1] for password in passwords.values() if password}) == len(made) == 3
    assert folder.stat().st_mode & 0o077 == 0


@deep
def test_the_roles_have_only_their_ledger(tmp_path: Path) -> None:
    """The owner migrates the ledger, the role of the services uses it and cannot change it, and neither may do more."""
    sql = (DEPLOY / "compose-role.sql").read_text()
    script = tmp_path / "role.sql"
    script.write_text(sql.replace("/run/secrets", str(tmp_path)).replace("/etc/onejob", str(Path(cli.__file__).parent)))
    (tmp_path / "owner-store").write_text("postgresql://onejob_owner:o@postgres/onejob\n")
    (tmp_path / "store").write_text("postgresql://onejob:s@postgres/onejob\n")
    server = start_postgres()
    try:
        with psycopg.connect(server.url, autocommit=True) as superuser:
            superuser.execute("create database onejob")
        place = server.url.partition("@")[2].removesuffix("/postgres")
        psql(f"postgresql://postgres@{place}/onejob", "-f", str(script))
        owner, url = (f"postgresql://{role}@{place}/onejob" for role in ("onejob_owner", "onejob"))
        with pytest.raises(StoreError):
            upgrade(url)
        upgrade(owner)
        (tmp_path / "store").write_text(url + "\n")
        examined = CliRunner(env={"ONEJOB_STORE_FILE": str(tmp_path / "store")}).invoke(main, ["doctor", "--json"])
        assert "postgresql-fsync" in examined.output, examined.output
        assert "postgresql-permissions" not in examined.output
        assert "postgresql-surplus-rights" not in examined.output
        play_all(StoreAddress(url, "onejob"))
        outside = ("create schema other", "create table public.other ()", "create role other", "create database other",
                   "alter role onejob superuser", "create extension file_fdw schema onejob",
                   "copy (select 1) to program 'true'", "select pg_read_file('/etc/passwd')")  # fmt: skip
        inside = ("create table onejob.other ()", "alter table onejob.jobs add column other int",
                  "drop table onejob.jobs", "truncate onejob.jobs", "delete from onejob.schema_version",
                  "update onejob.schema_version set version_num = '9999'", "truncate onejob.audit_log",
                  "insert into onejob.schema_version values ('9999')", "delete from onejob.ledger_info",
                  "update onejob.audit_log set entry = '{}'", "delete from onejob.audit_log",
                  "drop function onejob.trim_audit_log", "insert into onejob.ledger_info values ('other')",
                  "select setval('onejob.audit_log_id_seq', 1)")  # fmt: skip
        for role, statements in ((owner, outside), (url, outside + inside)):
            with psycopg.connect(role, autocommit=True) as connection:
                for refused in statements:
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        connection.execute(refused.encode())
            with pytest.raises(psycopg.OperationalError, match="permission denied"):
                psycopg.connect(role.removesuffix("/onejob") + "/postgres")
    finally:
        server.remove()


EMPTIED = (
    "jobs", "keys", "duplicate_sums", "tombstones", "quotas", "duplicate_counts", "limits", "limit_slots",
    "limit_reservations", "limit_rates",
)  # fmt: skip
"""The tables that a sequence may have written to."""


def play_all(address: StoreAddress) -> None:
    """Run the operations of a ledger, with and without an own clock, and trim its audit log."""
    clock = ManualClock()
    with address.opened(clock) as store, psycopg.connect(address.url, autocommit=True) as connection:
        for sequence in SEQUENCES:
            Script(LockStep(clock, {"postgresql": store})).play(sequence)
            for table in EMPTIED:
                connection.execute(f"delete from onejob.{table}".encode())  # noqa: S608 - ours
    with address.opened() as store:
        store.increment({"a": 1.0}, recent={"a": 1.0})
        store.heartbeat("node", lasts=60.0)
        store.keep_event("event", "body", keep_for=60.0)
        assert isinstance(store, MessageStore)
        store.put_messages([NewMessage("m", "", "q", "body")])
        assert len(store.take_messages(["q"], limit=1, consumer="c", hold=60.0)) == 1
        with psycopg.connect(address.url, autocommit=True) as connection:
            for age, count in ((AUDIT_SECONDS + 60, 2), (0, AUDIT_LIMIT)):
                connection.execute(
                    "insert into onejob.audit_log (at, entry) "
                    "select extract(epoch from now()) - %s, '{}' from generate_series(1, %s)", [age, count],
                )  # fmt: skip
            for _ in range(3):
                store.append_audit(ENTRY, keep=1, keep_for=0.0)  # a service cannot delete more than the ledger does
            left = connection.execute("select count(*), min(id) from onejob.audit_log").fetchone()
        assert left == (AUDIT_LIMIT, 6)


def test_the_roles_of_one_database_leave_the_others_as_they_are(postgres_server: PostgresServer) -> None:
    """`onejob migrate roles` takes names and passwords, hands over a ledger, and changes no other database."""
    others = "select datname, datacl from pg_database where datname in ('postgres', 'template1') order by 1"
    place = postgres_server.url.partition("@")[2].removesuffix("/postgres")
    url = f"postgresql://postgres@{place}/of_the_roles"
    names = {"schema": "jobs", "owner": "jobs owner", "role": "jobs_role", "password": "it's"}
    variables = [text for name, value in names.items() for text in ("-v", f"{name}={value}")]
    with psycopg.connect(postgres_server.url, autocommit=True) as superuser:
        superuser.execute("create database of_the_roles")
        try:
            before = superuser.execute(others).fetchall()
            upgrade(url, "jobs")
            assert "Nothing was revoked" in psql(url, *variables, "-f", "-", script=call("migrate", "roles").output)
            assert superuser.execute(others).fetchall() == before
            store = open_store(url.replace("postgres@", "jobs_role@"), namespace="jobs")
            assert submit(store).id == "job-1"
            store.close()
            owners = "select distinct tableowner from pg_tables where schemaname = 'jobs'"
            assert psql(url, "-Atc", owners).strip() == "jobs owner"
        finally:
            superuser.execute("drop database of_the_roles with (force)")
            superuser.execute('drop role if exists "jobs owner", jobs_role')


def psql(url: str, *options: str, script: str | None = None) -> str:
    """Run psql, as an operator does, and return what it prints."""
    command = [client_program("psql"), "--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-qd", url, *options]
    made = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return made.stdout + made.stderr


def test_redis_requires_its_password(tmp_path: Path) -> None:
    """Redis, started as in the Compose file, refuses commands without the password, which is in no argument."""
    script = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["redis"]["command"][-1]
    port = free_port()
    (tmp_path / "broker").write_text("redis://:secret@redis:6379/0\n")
    script = script.replace("$$", "$").replace("/run/secrets", str(tmp_path))
    script = script.replace("exec redis-server", f"exec {redis_binary()} --port {port} --dir {tmp_path}")
    with subprocess.Popen(["/bin/sh", "-ec", script], stdout=subprocess.DEVNULL) as server:
        try:
            client = redis.Redis(port=port, password="secret", decode_responses=True)  # noqa: S106 - of this test
            eventually(lambda: answers(client))
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            assert b"secret" not in subprocess.check_output(["/bin/ps", "-o", "args=", "-p", str(server.pid)])
            with pytest.raises(redis.AuthenticationError):
                redis.Redis(port=port).set("name", "value")
            client.close()
        finally:
            server.terminate()


def answers(client: redis.Redis) -> bool:
    """Return whether a server answers."""
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
