"""A submission in a transaction of the application: what its commit brings, and what it records before."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

import onejob
from onejob import ConfigurationError, KeyReuseMismatchError, Outcome, State, TaskIdReusedError
from onejob.celery import send, submit
from onejob.celery.message import decode
from onejob.celery.webhooks import ADDED_QUOTA
from onejob.errors import TooManyWebhooksError
from onejob.jobs.records import Query
from onejob.webhooks.job import WEBHOOK
from tests.transactions.owners import Django, Psycopg, SQLAlchemyConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onejob.jobs.model import Job
    from onejob.observability.events import JobEvent
    from tests.transactions.owners import Owner
    from tests.transactions.place import Place

URL = "https://hooks.example/"


# --- duplicates -----------------------------------------------------------------------------------------------------


def test_a_live_job_is_shared(place: Place, plain: Owner) -> None:
    """A duplicate in a transaction is attached and recorded at once, also if that is rolled back."""
    live = place.effect.delay("a")
    again = plain.submit(place.effect, "a")
    assert (again.outcome, again.id) == (Outcome.ATTACHED, live.id)
    (duplicate,) = place.ledger.duplicates(live.id)
    assert (duplicate.outcome, duplicate.answered_by) == (Outcome.ATTACHED, live.id)
    plain.rollback()
    assert (place.ledger.duplicates(live.id), place.ledger.get(live.id).duplicate_count) == ([duplicate], 1)
    assert (place.messages(), place.rows("jobs")) == ([live.id], 1)


@pytest.mark.parametrize("commits", [True, False])
def test_the_commit_replaces_the_arguments(place: Place, plain: Owner, commits: bool) -> None:
    """Arguments that are replaced in a transaction change the job at its commit, and not before or by a rollback."""
    first = place.newest.apply_async(("a", "old"), countdown=600)
    before = place.ledger.get(first.id)
    again = plain.submit(place.newest, "a", "new", countdown=600)
    assert (again.id, again.outcome) == (first.id, Outcome.REPLACED)
    assert place.ledger.get(first.id) == before
    plain.commit() if commits else plain.rollback()
    assert decode(place.ledger.get(first.id).payload).args == ["a", "new" if commits else "old"]
    assert len(place.ledger.duplicates(first.id)) == commits


@pytest.mark.parametrize("commits", [True, False])
def test_the_commit_queues_the_next_run(place: Place, plain: Owner, commits: bool) -> None:
    """A run that is queued next in a transaction exists after its commit, and not after a rollback."""
    first = place.again.delay("a", "old")
    run = place.claim(first.id)
    following = plain.submit(place.again, "a", "new")
    assert following.outcome is Outcome.QUEUED_NEXT
    plain.commit() if commits else plain.rollback()
    place.ledger.complete(run, "1")
    assert [job.id for job in place.jobs() if job.holds_identity] == [following.id] * commits


@pytest.mark.parametrize("commits", [True, False])
def test_a_key_is_kept_with_the_commit(place: Place, plain: Owner, commits: bool) -> None:
    """An idempotency key of a transaction names its job after the commit, and is free after a rollback."""
    first = plain.submit(place.effect, "a", idempotency_key="k")
    with pytest.raises(KeyReuseMismatchError):
        plain.submit(place.effect, "b", idempotency_key="k")
    plain.commit() if commits else plain.rollback()
    again = place.effect.apply_async(("a" if commits else "b",), idempotency_key="k")
    assert (again.id == first.id, again.outcome) == (commits, Outcome.ATTACHED if commits else Outcome.ADMITTED)


def test_many_in_a_transaction(place: Place, plain: Owner) -> None:
    """The results of a batch in a transaction are in order, and its jobs are published after the commit."""
    live = place.effect.delay("live")
    results = plain.call(lambda s: place.effect.submit_many([("a",), ("live",), ("a",), {"key": "b"}], session=s))
    expected = [Outcome.ADMITTED, Outcome.ATTACHED, Outcome.ATTACHED, Outcome.ADMITTED]
    assert [result.outcome for result in results] == expected
    assert place.messages() == [live.id]
    plain.commit()
    place.sweep()
    assert place.messages() == sorted([live.id, results[0].id, results[3].id])


def test_a_refused_duplicate_raises_in_a_transaction(place: Place, session: Owner) -> None:
    """With `on_duplicate="raise"` a duplicate raises in a transaction, which can continue."""
    place.strict.delay("a")
    results = session.call(lambda s: place.strict.submit_many([("a",), ("b",)], session=s))
    session.commit()
    assert [result.outcome for result in results] == [Outcome.REJECTED, Outcome.ADMITTED]
    assert place.ledger.get(results[1].id).state is State.QUEUED


def test_an_id_belongs_to_one_task(place: Place, plain: Owner) -> None:
    """A submission in a transaction under the id of another task's job, or follower, raises, and changes nothing."""
    place.effect.apply_async(("a",), task_id="taken")
    place.effect.apply_async(("a",), task_id="follower")
    before = place.jobs()
    for task_id in ("taken", "follower"):
        with pytest.raises(TaskIdReusedError, match=f"'{task_id}' belongs to a job of effect, .* of newest"):
            plain.submit(place.newest, "b", task_id=task_id)
    plain.rollback()
    assert place.jobs() == before


# --- when it is published -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "session"])
def test_when_a_committed_job_is_published(place: Place, request: pytest.FixtureRequest, kind: str) -> None:
    """A job is due at once where nobody is told of a commit, or when its countdown is over."""
    owner: Owner = request.getfixturevalue(kind)
    later = owner.submit(place.effect, "later", countdown=3600)
    soon = owner.submit(place.effect, "soon")
    owner.commit()
    assert place.messages() == [soon.id] * owner.hooked
    job, waiting = place.ledger.get(soon.id), place.ledger.get(later.id)
    assert job.wake_at == pytest.approx(job.created_at + (job.lease if owner.hooked else 0), abs=1e-3)
    assert waiting.wake_at == pytest.approx(waiting.created_at + 3600, abs=1.0)
    assert place.sweep() == (not owner.hooked)


@pytest.fixture(params=["session", "django"])
def hooked(request: pytest.FixtureRequest, place: Place) -> Iterator[Owner]:
    """Return an owner of each library that reports commits."""
    if request.param == "session":
        yield request.getfixturevalue("session")
        return
    owner = Django(place.url)
    yield owner
    owner.close()


def test_an_unavailable_broker_only_delays_committed_jobs(
    place: Place, hooked: Owner, emitted: list[JobEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the broker is unavailable after a commit, each job is reported, and due; a session tries only once."""
    place.app.conf.update(broker_url="redis://127.0.0.1:1/0")
    tried: list[object] = []

    def publish(*arguments: Any) -> bool:
        tried.append(arguments)
        return send.publish(*arguments)

    monkeypatch.setattr(submit, "publish", publish)
    for key in "abc":
        hooked.submit(place.effect, key)
    hooked.commit()
    assert [event.name for event in emitted].count("job_submitted") == 3
    assert len(tried) == (3 if isinstance(hooked, Django) else 1)
    unsent = [job for job in place.jobs() if job.published_at is None]
    assert (len(unsent), len(place.jobs())) == (len(tried), 3)
    assert all((job.wake_at or 0) < job.created_at + job.lease for job in unsent)


def test_a_closed_session_publishes_nothing_of_before(place: Place, session: Owner) -> None:
    """A session of SQLAlchemy that is closed without a commit, and used again, publishes no jobs from before."""
    session.submit(place.effect, "first")
    session.handle.close()
    second = session.submit(place.effect, "second")
    session.commit()
    assert place.messages() == [second.id]


@pytest.mark.parametrize("end", ["close", "rollback"])
def test_an_inner_savepoint_is_rolled_back_with_the_outer_one(place: Place, session: Owner, end: str) -> None:
    """The jobs of a released inner savepoint are rolled back with the outer one, also if that one is only closed."""
    outer = session.handle.begin_nested()
    with session.handle.begin_nested():
        session.submit(place.effect, "inner")
    getattr(outer, end)()
    kept = session.submit(place.effect, "kept")
    session.commit()
    assert place.messages() == [kept.id]


def test_the_commit_of_a_whole_session_commits_its_savepoints(place: Place, session: Owner) -> None:
    """A savepoint that is still open at the commit of its session belongs to what is published."""
    session.savepoint()
    session.savepoint()
    result = session.submit(place.effect, "a")
    session.commit()
    assert place.messages() == [result.id]


def test_a_session_on_an_outer_connection_does_not_publish(place: Place) -> None:
    """The commit of a session in an outer transaction publishes nothing; the outer commit or rollback decides."""
    owner = SQLAlchemyConnection(place.url)
    for end in (owner.rollback, owner.commit):
        owner.execute("select 1")
        with Session(owner.handle, join_transaction_mode="create_savepoint") as session:
            place.effect.submit("a", session=session)
            session.commit()
        assert (place.jobs(), place.messages()) == ([], [])
        end()
        assert place.sweep() == (end == owner.commit)
    owner.close()


def test_django_submits_on_commit(place: Place) -> None:
    """Outside of a transaction Django's connection commits at once; `..._on_commit` submits after a commit only."""
    owner = Django(place.url)
    place.effect.submit("at once", session=owner.handle)
    assert (len(place.jobs()), len(place.messages())) == (1, 1)
    for end, count in ((owner.rollback, 1), (owner.commit, 3)):
        owner.begin()
        place.effect.delay_on_commit("a")
        place.effect.apply_async_on_commit(("b",), countdown=3600)
        assert len(place.jobs()) == 1
        end()
        assert len(place.jobs()) == count
    assert len(place.messages()) == 2
    owner.close()


def test_a_submission_on_commit_needs_django(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Django `delay_on_commit` raises an error that says what to do."""
    monkeypatch.setitem(sys.modules, "django.db", None)
    with pytest.raises(ConfigurationError, match="pip install django"):
        place.effect.delay_on_commit("a")
    assert place.jobs() == []


def _dictionaries_of_psycopg(url: str) -> object:
    return psycopg.connect(url, row_factory=dict_row)


def _dictionaries_of_psycopg2(url: str) -> object:
    import psycopg2  # type: ignore[import-untyped] # ships no types
    from psycopg2.extras import RealDictCursor  # type: ignore[import-untyped] # ships no types

    connection: object = psycopg2.connect(url, cursor_factory=RealDictCursor)
    return connection


@pytest.mark.parametrize("connect", [_dictionaries_of_psycopg, _dictionaries_of_psycopg2])
def test_a_connection_may_have_a_row_factory(place: Place, connect: Callable[[str], object]) -> None:
    """A submission works on a connection with a row factory."""
    owner = Psycopg(place.url)
    owner.close()
    owner.handle = connect(place.url)
    result = owner.submit(place.effect, "a")
    owner.commit()
    owner.close()
    assert [job.id for job in place.jobs()] == [result.id]


# --- quotas and webhooks --------------------------------------------------------------------------------------------


def test_a_quota_is_consumed_with_the_commit(place: Place, plain: Owner) -> None:
    """A quota limits jobs in a transaction, too; a rollback returns what it has consumed."""
    with onejob.submitter("a", quota="1/hour"):
        plain.submit(place.effect, "a")
        plain.rollback()
        plain.submit(place.effect, "b")
        with pytest.raises(onejob.QuotaExceededError):
            plain.submit(place.effect, "c")
        plain.commit()
        with pytest.raises(onejob.QuotaExceededError):
            place.effect.delay("c")
    assert len(place.jobs()) == 1


def webhooks(place: Place) -> list[Job]:
    """Return the webhooks of a ledger."""
    return place.ledger.find(Query(task=WEBHOOK))


def taken(place: Place, hold: float = 60.0) -> list[str]:
    """Take what is due."""
    return [each.id for each in place.ledger.store.take_due(tasks=place.tasks, limit=10, hold=hold)]


def test_a_webhook_is_created_by_the_commit(place: Place, plain: Owner) -> None:
    """A webhook exists after the commit of its submission's transaction, not after a rollback; an end makes it due."""
    for end, count in ((plain.rollback, 0), (plain.commit, 1)):
        assert plain.submit(place.effect, "a", webhook_url=URL).outcome is Outcome.ADMITTED
        assert webhooks(place) == []
        end()
        assert len(webhooks(place)) == count
    (webhook,) = webhooks(place)
    taken(place, hold=3600.0)
    place.ledger.complete(place.claim(str(webhook.follows_id)), "null")
    assert taken(place) == [webhook.id]


def test_a_webhook_of_a_duplicate_blocks_nothing(place: Place, plain: Owner) -> None:
    """A live job can end while a transaction with a webhook for it is open; the webhook is sent after the commit."""
    first = place.effect.apply_async(("a",))
    job = place.claim(first.id)
    assert plain.submit(place.effect, "a", webhook_url=URL).outcome is Outcome.ATTACHED
    place.ledger.complete(job, "null")
    plain.commit()
    (webhook,) = webhooks(place)
    assert (webhook.state, webhook.follows_id) == (State.QUEUED, first.id)
    assert taken(place) == [webhook.id]


def test_a_transaction_adds_few_webhooks(place: Place, plain: Owner) -> None:
    """The limit of webhooks per job holds in transactions, too; one that is refused adds none, and its job stands."""
    first = place.effect.apply_async(("a",))
    for number in range(ADDED_QUOTA.limit):
        plain.submit(place.effect, "a", webhook_url=f"{URL}{number}")
    with pytest.raises(TooManyWebhooksError, match="which is the limit"):
        plain.submit(place.effect, "a", webhook_url=f"{URL}new")
    plain.commit()
    assert len(webhooks(place)) == ADDED_QUOTA.limit
    assert place.ledger.get(first.id).state is State.QUEUED
