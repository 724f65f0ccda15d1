"""A submission in a transaction of the application: what its commit brings, and what it records before."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial
from unittest.mock import Mock

import psycopg
import pytest
from celery.exceptions import TimeoutError  # noqa: A004 - the name that users catch
from django.core.exceptions import ImproperlyConfigured
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from onejob import Outcome, State
from onejob.celery.app_state import app_state_of
from onejob.celery.messages.payload import decode
from onejob.celery.submission.submit import ADDED_QUOTA
from onejob.errors import ConfigurationError, JobNotFoundError, KeyReuseMismatchError, TooManyWebhooksError
from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.observability.events import JobEvent
from onejob.observability.metrics import WEBHOOK_TASK
from tests.cases import for_each
from tests.quiet import provokes
from tests.services import eventually
from tests.transactions.cluster import PostgresCluster
from tests.transactions.owners import KINDS, Django, Owner, connect_psycopg2

URL = "https://hooks.example/"


def test_a_live_job_is_shared(cluster: PostgresCluster, plain: Owner) -> None:
    """A duplicate in a transaction is attached and recorded at once, also if that is rolled back."""
    live = cluster.effect.delay("a")
    again = plain.submit(cluster.effect, "a")
    assert (again.outcome, again.id) == (Outcome.ATTACHED, live.id)
    (duplicate,) = cluster.ledger.duplicates(live.id)
    assert (duplicate.outcome, duplicate.answered_by) == (Outcome.ATTACHED, live.id)
    plain.rollback()
    assert (cluster.ledger.duplicates(live.id), cluster.ledger.get(live.id).duplicate_count) == ([duplicate], 1)
    assert (cluster.messages(), cluster.rows("jobs")) == ([live.id], 1)


@pytest.mark.parametrize("commits", [True, False])
def test_the_commit_decides_on_a_duplicate(cluster: PostgresCluster, plain: Owner, commits: bool) -> None:
    """Replaced arguments, a run that is queued next and an idempotency key are there after a commit, not a rollback."""
    waiting = cluster.newest.apply_async(("a", "old"), countdown=600)
    before, run = cluster.ledger.get(waiting.id), cluster.claim(cluster.again.delay("b", "old").id)
    assert plain.submit(cluster.newest, "a", "new", countdown=600).outcome is Outcome.REPLACED
    following = plain.submit(cluster.again, "b", "new")
    keyed = plain.submit(cluster.effect, "c", idempotency_key="k")
    assert following.outcome is Outcome.QUEUED_NEXT
    with pytest.raises(KeyReuseMismatchError):
        plain.submit(cluster.effect, "d", idempotency_key="k")
    assert cluster.ledger.get(waiting.id) == before
    plain.commit() if commits else plain.rollback()
    assert decode(cluster.ledger.get(waiting.id).payload).args == ["a", "new" if commits else "old"]
    assert len(cluster.ledger.duplicates(waiting.id)) == commits
    cluster.ledger.complete(run, "1")
    assert [job.id for job in cluster.jobs() if job.holds_identity and job.task == "again"] == [following.id] * commits
    again = cluster.effect.apply_async(("c" if commits else "d",), idempotency_key="k")
    assert (again.id == keyed.id) == commits


def is_past(cluster: PostgresCluster, job: JobRow) -> bool:
    """Return whether a job has expired."""
    return cluster.ledger.read_clock() > (job.expires_at or 0.0)


@for_each("name", ["effect", "strict", "newest", "again"])
def test_a_job_that_has_expired_holds_up_no_transaction(cluster: PostgresCluster, plain: Owner, name: str) -> None:
    """A submission in a transaction that meets an expired job, which no sweep has seen, is admitted, keyed or not."""
    task = getattr(cluster, name)
    for key in (None, "k"):
        expired = cluster.ledger.get(task.apply_async((f"{name} {key}",), expires=0.01).id)
        eventually(partial(is_past, cluster, expired))
        later = plain.submit(task, f"{name} {key}", idempotency_key=key and f"{name} {key}")
        plain.commit()
        assert later.outcome == Outcome.ADMITTED
        assert later.id != expired.id
        assert cluster.ledger.get(later.id).holds_identity
        assert not cluster.ledger.get(expired.id).holds_identity


@pytest.mark.parametrize("commits", [True, False])
def test_a_key_beside_a_known_id_is_there_after_the_commit(
    cluster: PostgresCluster, plain: Owner, commits: bool
) -> None:
    """In a transaction a new key of a known id names its job after the commit; with other arguments it is refused."""
    live = cluster.effect.apply_async(("a",), task_id="own")
    for key, other in (("k", "b"), ("l", "a")):
        with pytest.raises(KeyReuseMismatchError) if other == "b" else nullcontext():
            assert plain.submit(cluster.effect, other, task_id="own", idempotency_key=key).id == live.id
    with pytest.raises(KeyReuseMismatchError):
        plain.submit(cluster.effect, "b", task_id="own", idempotency_key="l")
    assert plain.submit(cluster.effect, "c", task_id="own").id == live.id
    plain.commit() if commits else plain.rollback()
    cluster.ledger.complete(cluster.claim(live.id), "1")
    assert (cluster.effect.apply_async(("a",), idempotency_key="l").id == live.id) == commits
    assert cluster.effect.apply_async(("b",), idempotency_key="k").outcome is Outcome.ADMITTED


def test_many_in_a_transaction(cluster: PostgresCluster, plain: Owner) -> None:
    """The results of a batch in a transaction are in order, and its jobs are published after the commit."""
    live = cluster.effect.delay("live")
    results = plain.call(lambda s: cluster.effect.submit_many([("a",), ("live",), ("a",), {"key": "b"}], session=s))
    expected = [Outcome.ADMITTED, Outcome.ATTACHED, Outcome.ATTACHED, Outcome.ADMITTED]
    assert [result.outcome for result in results] == expected
    assert cluster.messages() == [live.id]
    strict = plain.call(lambda s: cluster.strict.submit_many([("a",), ("a",)], session=s))
    assert [result.outcome for result in strict] == [Outcome.ADMITTED, Outcome.REJECTED]
    plain.commit()
    cluster.sweep()
    assert cluster.messages() == sorted([live.id, results[0].id, results[3].id, strict[0].id])


@provokes(Transition.PUBLISH, because="the broker is away")
@pytest.mark.parametrize(("connect", "attempts"), [(KINDS["sqlalchemy-session"], 1), (Django, 3)])
def test_an_unavailable_broker_only_delays_committed_jobs(
    cluster: PostgresCluster,
    emitted: list[JobEvent],
    monkeypatch: pytest.MonkeyPatch,
    connect: Callable[[str], Owner],
    attempts: int,
) -> None:
    """When the broker is unavailable after a commit, each job is reported, and due; a session tries only once."""
    cluster.app.conf.update(broker_url="redis://127.0.0.1:1/0")
    tried: list[object] = []
    publisher = app_state_of(cluster.app).publisher
    publish = publisher.try_publish
    monkeypatch.setattr(publisher, "try_publish", lambda job: tried.append(publish(job)))
    with closing(connect(cluster.url)) as hooked:
        for key in "abc":
            hooked.submit(cluster.effect, key)
        hooked.commit()
    assert ([event.name for event in emitted].count("job_submitted"), len(tried)) == (3, attempts)
    unsent = [job for job in cluster.jobs() if job.published_at is None]
    assert (len(unsent), len(cluster.jobs())) == (attempts, 3)
    assert all((job.wake_at or 0) < job.created_at + job.lease for job in unsent)


@pytest.mark.parametrize("end", ["close", "rollback"])
def test_what_is_left_without_a_commit_is_not_published(cluster: PostgresCluster, session: Owner, end: str) -> None:
    """The jobs of a session, or of savepoints in each other, that ended without a commit are not published later."""
    session.submit(cluster.effect, "first")
    getattr(session.handle, end)()
    outer = session.handle.begin_nested()
    with session.handle.begin_nested():
        session.submit(cluster.effect, "inner")
    getattr(outer, end)()
    session.savepoint()
    session.savepoint()
    kept = session.submit(cluster.effect, "kept")
    session.commit()  # commits its savepoints, too
    assert cluster.messages() == [kept.id]


def test_a_session_on_an_outer_connection_does_not_publish(cluster: PostgresCluster) -> None:
    """The commit of a session in an outer transaction publishes nothing; the outer commit or rollback decides."""
    with closing(KINDS["sqlalchemy-connection"](cluster.url)) as owner:
        for end in (owner.rollback, owner.commit):
            owner.execute("select 1")
            with Session(owner.handle, join_transaction_mode="create_savepoint") as session:
                cluster.effect.submit("a", session=session)
                session.commit()
            assert (cluster.jobs(), cluster.messages()) == ([], [])
            end()
            assert cluster.sweep() == (end == owner.commit)


def test_django_submits_on_commit(cluster: PostgresCluster) -> None:
    """Outside of a transaction Django's connection commits at once; `..._on_commit` submits after a commit only."""
    owner = Django(cluster.url)
    cluster.effect.submit("at once", session=owner.handle)
    assert (len(cluster.jobs()), len(cluster.messages())) == (1, 1)
    for end, count in ((owner.rollback, 1), (owner.commit, 3)):
        owner.begin()
        cluster.effect.delay_on_commit("a")
        cluster.effect.apply_async_on_commit(("b",), countdown=3600)
        assert len(cluster.jobs()) == 1
        end()
        assert len(cluster.jobs()) == count
    assert len(cluster.messages()) == 2
    owner.close()


def test_a_submission_on_commit_needs_django(cluster: PostgresCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Django `delay_on_commit` raises an error that says what to do."""
    monkeypatch.setitem(sys.modules, "django.db", None)
    with pytest.raises(ConfigurationError, match="pip install django"):
        cluster.effect.delay_on_commit("a")
    assert cluster.jobs() == []


def test_a_submission_on_commit_needs_the_settings_of_django(
    cluster: PostgresCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Django is installed and no project of Django runs, `delay_on_commit` raises as without Django."""
    unconfigured = Mock(side_effect=ImproperlyConfigured("settings are not configured"))
    monkeypatch.setattr("django.db.transaction.get_connection", unconfigured)
    with pytest.raises(ConfigurationError, match="use delay: settings are not configured"):
        cluster.effect.delay_on_commit("a")
    assert cluster.jobs() == []


def _dictionaries_of_psycopg2(url: str) -> object:
    from psycopg2.extras import RealDictCursor  # type: ignore[import-untyped] # ships no types

    return connect_psycopg2(url, cursor_factory=RealDictCursor)


@for_each("connect", [partial(psycopg.connect, row_factory=dict_row), _dictionaries_of_psycopg2])
def test_a_connection_may_have_a_row_factory(cluster: PostgresCluster, connect: Callable[[str], object]) -> None:
    """A submission works on a connection with a row factory."""
    with closing(Owner(connect(cluster.url))) as owner:
        result = owner.submit(cluster.effect, str(connect))
        owner.commit()
    assert cluster.ledger.get(result.id).state is State.QUEUED


def test_a_result_ends_with_its_transaction(cluster: PostgresCluster, owner: Owner) -> None:
    """While a transaction is open, its submission is pending; after a rollback, every way to ask says so."""
    result = owner.submit(cluster.effect, "a")
    assert result.state == "PENDING"
    assert not result.ready()
    with pytest.raises(TimeoutError):
        result.get(0)
    owner.rollback()
    for ask in (result.get, result.ready, lambda: result.state, lambda: asyncio.run(result.aget()), lambda: result.job):
        with pytest.raises(JobNotFoundError, match="its transaction was not committed"):
            ask()
    kept = owner.submit(cluster.effect, "b")
    owner.commit()
    assert kept.state == "PENDING"


@pytest.mark.parametrize("end", ["rollback", "close"])
def test_many_results_end_with_their_transaction(cluster: PostgresCluster, session: Owner, end: str) -> None:
    """The results of a batch are pending until its transaction ends, also one of a savepoint that was rolled back."""
    savepoint = session.savepoint()
    results = session.call(lambda handle: cluster.effect.submit_many([("a",), ("b",)], session=handle))
    savepoint.rollback()
    assert [result.state for result in results] == ["PENDING", "PENDING"]
    getattr(session.handle, end)()
    for result in results:
        with pytest.raises(JobNotFoundError):
            result.get()


def webhooks(cluster: PostgresCluster) -> list[JobRow]:
    return cluster.ledger.find(Query(task=WEBHOOK_TASK))


def test_a_webhook_of_a_duplicate_blocks_nothing(cluster: PostgresCluster, plain: Owner) -> None:
    """A live job can end while a transaction with a webhook for it is open; the webhook is sent after the commit."""
    first = cluster.effect.apply_async(("a",))
    job = cluster.claim(first.id)
    assert plain.submit(cluster.effect, "a", webhook_url=URL).outcome is Outcome.ATTACHED
    cluster.ledger.complete(job, "null")
    plain.commit()
    (webhook,) = webhooks(cluster)
    assert (webhook.state, webhook.follows_id) == (State.QUEUED, first.id)
    assert [each.id for each in cluster.ledger.store.take_due(tasks=cluster.tasks, limit=10, hold=60.0)] == [webhook.id]


def test_a_transaction_adds_few_webhooks(cluster: PostgresCluster, plain: Owner) -> None:
    """The limit of webhooks per job holds in transactions, too; one that is refused adds none, and its job stands."""
    first = cluster.effect.apply_async(("a",))
    for number in range(ADDED_QUOTA.limit):
        plain.submit(cluster.effect, "a", webhook_url=f"{URL}{number}")
    with pytest.raises(TooManyWebhooksError, match="which is the limit"):
        plain.submit(cluster.effect, "a", webhook_url=f"{URL}new")
    plain.commit()
    assert len(webhooks(cluster)) == ADDED_QUOTA.limit
    assert cluster.ledger.get(first.id).state is State.QUEUED
