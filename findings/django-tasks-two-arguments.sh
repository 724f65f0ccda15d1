#!/usr/bin/env bash
# django-tasks 0.12.0 (the package of what Django 6 calls django.tasks, which does the same) with django-tasks-db
#   0.13.0, seen 2026-11-28.
# Expected: arguments of a task have to be JSON. What a backend cannot store is refused by all backends alike, so that
#   tests with ImmediateBackend (documented for development and tests) see what production sees.
# Happens: `enqueue` normalises tuples to lists and bytes to text, and leaves the rest: with ImmediateBackend a dict
#   keeps its integer keys and NaN stays NaN; with the database backend the keys are texts, and NaN breaks a
#   constraint of the table when it is stored. With either, `b"x"` arrives as `"x"`, without an error.
# Means: a task that looks up `prices[42]` passes its tests and fails in production. Send text keys; encode bytes by
#   hand.
. "$(dirname "$0")/lib.sh"
packages Django==5.2.19 django-tasks==0.12.0 django-tasks-db==0.13.0

module shop <<'PY'
from django_tasks import task

seen = []


@task
def note(value):
    seen.append(value)
PY
observe <<'PY'
import logging

import django
from django.conf import settings

BACKENDS = {
    "default": "django_tasks_db.DatabaseBackend",
    "immediate": "django_tasks.backends.immediate.ImmediateBackend",
}
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}},
    INSTALLED_APPS=["django_tasks_db"],
    TASKS={name: {"BACKEND": backend} for name, backend in BACKENDS.items()},
)
django.setup()

import shop
from django.core.management import call_command

logging.disable(logging.CRITICAL)
call_command("migrate", verbosity=0)


def received(backend, value):
    shop.seen.clear()
    try:
        shop.note.using(backend=backend).enqueue(value)
    except Exception as error:
        return type(error).__name__
    if backend == "default":
        call_command("db_worker", batch=True, interval=0.1, worker_id="worker", verbosity=0)
    return repr(shop.seen[0])


for value in ({42: "price"}, float("nan"), b"text", (1, 2)):
    print(f"{value!r:15} immediate {received('immediate', value):15} database {received('default', value)}")
PY
expect <<'TEXT'
{42: 'price'}   immediate {42: 'price'}   database {'42': 'price'}
nan             immediate nan             database IntegrityError
b'text'         immediate 'text'          database 'text'
(1, 2)          immediate [1, 2]          database [1, 2]
TEXT
