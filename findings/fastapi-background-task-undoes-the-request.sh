#!/usr/bin/env bash
# fastapi 0.165.0 with starlette 1.10.0, seen 2026-11-28.
# Expected: a background task runs after the response, and its failure is its own: the request was answered with 200.
# Happens: the code after `yield` of a dependency runs after the background tasks, and the failure is raised at the
#   yield. A dependency that commits at its end, and rolls back on an exception, rolls back: the client has its 200,
#   the mail failed, the order is gone. The task itself ran before the commit: another process that it told of the
#   order cannot see it.
# Means: commit in the body of the endpoint, or declare the dependency with `scope="function"` (then it commits
#   before).
. "$(dirname "$0")/lib.sh"
packages fastapi==0.165.0 starlette==1.10.0 httpx==0.28.1

observe <<'PY'
import sqlite3

import fastapi
from fastapi.testclient import TestClient

with sqlite3.connect("shop.db") as made:
    made.execute("create table orders (name text)")

app = fastapi.FastAPI()


def orders():
    connection = sqlite3.connect("shop.db")
    return [name for (name,) in connection.execute("select name from orders")]


def session():
    connection = sqlite3.connect("shop.db", check_same_thread=False)
    try:
        yield connection
        connection.commit()
    except Exception as error:
        print("   the dependency gets", type(error).__name__, "and rolls back")
        connection.rollback()
        raise


def mail(fails):
    print("   the mail is sent, orders in the database:", orders())
    if fails:
        raise ConnectionError


@app.post("/{name}")
def order(name: str, fails: bool, background: fastapi.BackgroundTasks, connection=fastapi.Depends(session)):
    connection.execute("insert into orders values (?)", (name,))
    background.add_task(mail, fails)


@app.post("/scoped/{name}")
def scoped(name: str, background: fastapi.BackgroundTasks, connection=fastapi.Depends(session, scope="function")):
    connection.execute("insert into orders values (?)", (name,))
    background.add_task(mail, fails=True)


client = TestClient(app, raise_server_exceptions=False)
for path in ("/book?fails=false", "/lamp?fails=true", "/scoped/sofa"):
    print("POST", path)
    status = client.post(path).status_code
    print("   status", status, "| orders afterwards:", orders())
PY
expect <<'TEXT'
POST /book?fails=false
   the mail is sent, orders in the database: []
   status 200 | orders afterwards: ['book']
POST /lamp?fails=true
   the mail is sent, orders in the database: ['book']
   the dependency gets ConnectionError and rolls back
   status 200 | orders afterwards: ['book']
POST /scoped/sofa
   the mail is sent, orders in the database: ['book', 'sofa']
   status 200 | orders afterwards: ['book', 'sofa']
TEXT
