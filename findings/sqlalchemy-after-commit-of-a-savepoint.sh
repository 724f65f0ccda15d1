#!/usr/bin/env bash
# SQLAlchemy 2.1.9, seen 2026-11-28.
# Expected: the event `after_commit` of a Session is the place to send a message about what was committed.
# Happens: it fires when a savepoint (`begin_nested()`) is released, too. The transaction is still open then, and can
#   be rolled back: the message is about rows that never exist. A library that writes inside a savepoint
#   (get_or_create, a bulk import that skips bad rows) is enough.
# Means: a task that is sent from this event runs before, and without, its data. Ask `session.in_nested_transaction()`
#   in the handler: it is true for a savepoint.
. "$(dirname "$0")/lib.sh"
packages SQLAlchemy==2.1.9

observe <<'PY'
import sqlalchemy as sa
from sqlalchemy import orm

engine = sa.create_engine("sqlite:///shop.db")
with engine.begin() as connection:
    connection.execute(sa.text("create table orders (id integer primary key)"))

sent = []
with orm.Session(engine) as session:

    @sa.event.listens_for(session, "after_commit")
    def send(session):
        sent.append("of a savepoint" if session.in_nested_transaction() else "of the transaction")

    session.execute(sa.text("insert into orders values (1)"))
    with session.begin_nested():
        session.execute(sa.text("insert into orders values (2)"))
    print("sent before any commit:", sent)
    session.rollback()
    print("orders after rollback:", session.scalar(sa.text("select count(*) from orders")))
    session.execute(sa.text("insert into orders values (3)"))
    session.commit()
    print("sent in all:", sent)
PY
expect <<'TEXT'
sent before any commit: ['of a savepoint']
orders after rollback: 0
sent in all: ['of a savepoint', 'of the transaction']
TEXT
