"""What a task's class may have of its own, and what is refused when it is bound, with what to write instead."""
# mypy: allow-subclassing-any

import subprocess
import sys
from typing import Any

import celery
import pytest
from celery.contrib.abortable import AbortableAsyncResult, AbortableTask
from celery.worker.request import Request as CeleryRequest

import onejob
from onejob.celery.worker.request import Request
from onejob.errors import ConfigurationError
from tests.cases import for_each

Plain: Any = celery.Task
Ours: Any = onejob.Task
Abortable: Any = AbortableTask


class Batches(Plain):
    """A class of another library, which hands many messages to one call of `run`."""

    abstract = True

    def Strategy(self, task: Any, app: Any, consumer: Any) -> Any:  # noqa: N802 - Celery's name
        return lambda *_: None


class Tenants(Plain):
    """A class that adds the tenant of the caller to each message."""

    abstract = True

    def apply_async(self, *args: Any, **options: Any) -> Any:
        return super().apply_async(*args, **options)


class Delays(Plain):
    """A class with a `delay` of its own."""

    abstract = True

    def delay(self, *args: Any) -> Any:
        return super().delay(*args)


class OwnRequest(CeleryRequest):
    """As Celery's documentation shows it."""


class GoodRequest(Request):
    """The same on onejob's request."""


def body() -> None:
    """Do nothing."""


def bind(base: type, **options: Any) -> Any:
    """Bind a task of a class."""
    app: Any = celery.Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    return app.task(body, name="job", base=base, shared=False, lazy=False, **options)


def kind(*bases: type, **attributes: Any) -> type:
    return type("Job", bases, {"abstract": True, **attributes})


REFUSED = {
    "a Strategy that stands first": (kind(Batches, Ours), "has the Strategy of Batches.*use Batches for a plain task"),
    "a Strategy that stands last": (kind(Ours, Batches), "has the Strategy of Batches"),
    "a Strategy by its name": (kind(Ours, Strategy="batches:Strategy"), "has the Strategy of Job"),
    "a Request": (kind(Ours, Request=OwnRequest), r"derive it from onejob\.celery\.worker\.request\.Request"),
    "a Request by its name": (kind(Ours, Request=f"{__name__}:OwnRequest"), "OwnRequest' of Job, which renews no"),
    "Celery's own Request": (kind(Ours, Request="celery.worker.request:Request"), "which renews no lease"),
    "aborts": (kind(Ours, Abortable), r"AbortableTask after onejob\.Task, so that its AsyncResult is never called"),
    "an apply_async that is shadowed": (kind(Ours, Tenants), r"name it first, \(Tenants, onejob\.Task\)"),
    "a delay that is shadowed": (kind(Ours, Delays), "its delay is never called"),
    "shadows at the second level": (kind(kind(Ours, Tenants)), "its apply_async is never called"),
}


@for_each("case", REFUSED)
def test_a_class_that_passes_its_jobs_by_is_refused(case: str) -> None:
    """A class with which jobs would run without claims, or a base of which a part is dead, says what to write."""
    base, says = REFUSED[case]
    with pytest.raises(ConfigurationError, match=says):
        bind(base)


ACCEPTED = {
    "aborts first": kind(Abortable, Ours),
    "tenants first": kind(Tenants, Ours),
    "a delay that stands first": kind(Delays, Ours),
    "a Request of ours": kind(Ours, Request=GoodRequest),
    "a Request of ours by its name": kind(Ours, Request=f"{__name__}:GoodRequest"),
    "the class of the app": kind(Ours, celery.Celery("other", set_as_current=False).Task),
    "a mixin of no task": kind(type("Mixin", (), {"apply_async": Tenants.apply_async}), Ours),
}


@for_each("case", ACCEPTED)
def test_a_class_whose_parts_are_all_called_is_bound(case: str) -> None:
    """A base that stands before `onejob.Task`, and a request derived from its own, are as good as none."""
    assert bind(ACCEPTED[case])._onejob.task == "job"


def test_a_request_that_the_class_and_the_task_name_is_checked_alike() -> None:
    """Attributes that `@app.task` gives are checked as those of a class."""
    with pytest.raises(ConfigurationError, match="which renews no lease"):
        bind(Ours, Request=OwnRequest)


def test_an_abortable_job_knows_that_it_was_aborted() -> None:
    """Celery's AbortableTask, named first, works: its result aborts, and its body sees it."""
    task = bind(ACCEPTED["aborts first"])
    result = task.AsyncResult("some-id")
    assert isinstance(result, AbortableAsyncResult)
    assert not task.is_aborted(task_id="some-id")
    result.abort()
    assert task.is_aborted(task_id="some-id")


DJANGO = """
import django
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
django.setup()
import celery, onejob
from celery.contrib.django.task import DjangoTask
app = celery.Celery("shop", broker="memory://")
def body(): ...
for bases in ((onejob.Task, DjangoTask), (DjangoTask, onejob.Task)):
    task = app.task(body, name=str(bases), base=type("Job", bases, {"abstract": True}), shared=False, lazy=False)
    called = []
    task.apply_async = lambda *given, **options: called.append(given)
    task.delay_on_commit()
    task.apply_async_on_commit()
    print(len(called))
"""


def test_celerys_class_for_django_stands_before_or_after() -> None:
    """Its two methods are those of `onejob.Task`, so that either order does the same."""
    ran = subprocess.run([sys.executable, "-c", DJANGO], capture_output=True, text=True, check=False)
    assert (ran.stdout.split(), ran.stderr) == (["2", "2"], "")
