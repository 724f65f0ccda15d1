"""Laws of the ledger as scripts: commands, separated by `;`, on jobs that are named by their ids.

A command is a name, ids, and values, which are expressions with the names of `Script.names`, or else texts:

    run a canvas=True; pass LEASE; sweep published=1 lapsed=1; a state=queued crashes=1

A name that is an id asserts columns of that job: `detail` and `events` are the ends of its history, `says` is a part of
its text. `changed` asserts all columns that the last command changed. `keep` asserts that a command changes no job,
`raise` that it raises an error with these values, and `refuse` both. `meanwhile` runs commands just after the next call
of an operation of the store, and `during` while a `sweep during` publishes; `changed` asks what has changed since.
"""

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from onejob import errors
from onejob.jobs.durations import DAY
from onejob.jobs.handover import BY_CALLER, by_sweep
from onejob.jobs.ledger_settings import LedgerSettings
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import IdentityHold, JobRow, Outcome, Renewal
from onejob.jobs.query import Query
from onejob.jobs.timestamps import format_timestamp
from onejob.jobs.transitions import DST_SHIFT
from onejob.ledger.ledger import NextRun
from onejob.ledger.sweep import SweepResult, note_canvas_error, note_unsent
from onejob.stores.protocol import Store
from tests.ledger.harness import LedgerHarness, no_broker, publish_nothing, refuse, refuse_store
from tests.stores import support
from tests.stores.support import ManualClock

COMMAND = re.compile(r"(?:[^;']|'[^']*')+")
OPERATIONS = frozenset("get cancel run_now redrive drop delete".split())
"""The operations of the ledger that take an id."""


class Script(LedgerHarness):
    """Plays the commands of a script on one store."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        super().__init__(store, clock)
        self.runs: dict[str, JobRow] = {}
        """The latest run of each job."""
        self.before: dict[str, JobRow] = {}
        """All jobs before the last command."""
        self.publishers: dict[str, Callable[[JobRow], object]] = {
            "nobody": publish_nothing, "refuse": refuse, "away": no_broker, "broker": self.sent.append,
            "store": refuse_store,
        }  # fmt: skip

    @property
    def names(self) -> dict[str, Any]:
        """What expressions may use."""
        return {
            "DAY": DAY, "HOUR": DST_SHIFT, "LEASE": support.LEASE, "START": support.START, "LONG": 1e6,
            "now": self.clock(), "State": State, "at": lambda seconds: format_timestamp(support.START + seconds),
        }  # fmt: skip

    def play(self, text: str) -> None:
        """Run all commands."""
        for command in filter(None, map(str.strip, COMMAND.findall(text))):
            try:
                self.run_command(command)
            except Exception as error:
                error.add_note(f"in: {command}")
                raise

    def run_command(self, command: str) -> Any:
        """Run one command, and return its answer."""
        name, _, rest = command.partition(" ")
        if name in {"keep", "raise", "refuse", "meanwhile", "during"}:
            return getattr(self, f"{name}_")(rest)
        ids, values = self.parse(rest)
        own = getattr(self, f"do_{name}", None)
        if own is None and name not in OPERATIONS:
            return self.check(name, values)
        if name != "changed":
            self.before = self.jobs()
        if own is not None:
            return own(*ids, **values)
        answer = getattr(self.ledger, name)(*ids, **values)
        assert answer is None or answer == self.read(*ids)
        return answer

    def parse(self, text: str) -> tuple[list[str], dict[str, Any]]:
        """Return the words and the values of a command."""
        words = shlex.split(text)
        values = {key: self.value(text) for key, _, text in (word.partition("=") for word in words if "=" in word)}
        return [word for word in words if "=" not in word], values

    def value(self, text: str) -> Any:
        """Return the value of an expression, or else the text itself."""
        try:
            return eval(text, {}, self.names)  # noqa: S307 - the scripts are ours
        except (NameError, SyntaxError):
            return text

    def jobs(self) -> dict[str, JobRow]:
        """Return all jobs by their ids."""
        return {job.id: job for job in self.store.find(Query(limit=1000))}

    def check(self, job_id: str, values: dict[str, Any]) -> None:
        """Assert columns of a job, and the end of its history."""
        job, expected = self.read(job_id), dict(values)
        if "events" in expected:
            events = expected.pop("events").split(",")
            assert self.events(job_id)[-len(events) :] == events
        if "detail" in expected:
            assert self.store.history(job_id)[-1].detail == str(expected.pop("detail"))
        assert str(expected.pop("says", "")) in str(job)
        assert {name: getattr(job, name) for name in expected} == expected

    # --- around commands --------------------------------------------------------------------------------------------

    def keep_(self, command: str) -> None:
        """Assert that a command changes nothing."""
        with support.untouched(self.store, *self.jobs()):
            self.run_command(command)

    def raise_(self, command: str) -> None:
        """Assert that a command raises an error, with these values."""
        (error, *words), expected = self.parse(command)
        with pytest.raises(getattr(errors, error)) as caught:
            self.run_command(" ".join(words))
        assert type(caught.value).__name__ == error
        assert {name: getattr(caught.value, name) for name in expected} == expected

    def refuse_(self, command: str) -> None:
        """Assert that a command raises an error, and changes nothing."""
        with support.untouched(self.store, *self.jobs()):
            self.raise_(command)

    def meanwhile_(self, command: str) -> None:
        """Run commands, separated by `&`, just after the next call of an operation of the store."""
        operation, _, commands = command.partition(" ")
        self.meanwhile(operation, partial(self.play_meanwhile, commands))

    def during_(self, commands: str) -> None:
        """Run commands, separated by `&`, for each message of a sweep, before that is noted."""
        self.publishers["during"] = lambda _: self.play_meanwhile(commands)

    def play_meanwhile(self, commands: str) -> None:
        """Run commands within another one, and remember what they leave."""
        self.play(commands.replace(" & ", "; "))
        self.before = self.jobs()

    # --- submissions ------------------------------------------------------------------------------------------------

    def do_submit(self, ids: str, outcome: str = "admitted", by: str = "", **values: Any) -> None:
        """Submit jobs (`id:identity`) and assert the outcome, and which job answers."""
        for each in ids.split(","):
            job_id, _, identity = each.partition(":")
            given = {"identity": identity} if identity else {}
            answer = self.ledger.submit(support.submission(job_id, **given | values))
            assert (answer.outcome, answer.job) == (Outcome(outcome), self.read(by or job_id))

    do_due = LedgerHarness.due

    def do_run(self, ids: str, **values: Any) -> None:
        """Submit jobs, and claim them."""
        self.do_submit(ids, **values)
        self.do_start(*(each.partition(":")[0] for each in ids.split(",")))

    def do_start(self, *ids: str) -> None:
        for job_id in ids:
            self.runs[job_id] = self.start(job_id)

    def do_follow(self, job_id: str, after: str, **values: Any) -> None:
        self.follow(job_id, follows=after, **values)

    def do_queue(self, job_id: str, **values: Any) -> None:
        """Queue a run behind the job that holds the identity "same"."""
        support.queue_next(self.store, job_id, **values)

    # --- runs -------------------------------------------------------------------------------------------------------

    def do_complete(self, job_id: str, result: str = "1", **keep: float) -> None:
        hold = IdentityHold(**{f"identity_{name}": at for name, at in keep.items()}) if keep else None
        self.ledger.complete(self.runs[job_id], result, hold=hold)

    def do_fail(self, job_id: str, reason: str = "it broke") -> None:
        self.ledger.fail(self.runs[job_id], "bad", reason)

    def do_abandon(self, job_id: str, reason: str = "stopped") -> None:
        self.ledger.abandon(self.runs[job_id], reason)

    def do_retry(self, job_id: str, error: str | None = None, reason: str = "again", **values: Any) -> None:
        again: dict[str, Any] = {"payload": "[]", "options": "[]", "retries": 1}
        self.ledger.retry(self.runs[job_id], NextRun(**again | values), error=error, reason=reason)

    def do_release(self, job_id: str, reason: str = "again", wake_after: float | None = None) -> None:
        handover = BY_CALLER if wake_after is None else by_sweep(wake_after)
        self.ledger.release(self.runs[job_id], reason, handover=handover)

    def do_crash(self, job_id: str, *, applied: bool = True, lapsed: bool = False) -> None:
        assert self.ledger.crash(self.runs[job_id], "killed", '"error"', lapsed=lapsed).applied is applied

    def do_replace(self, job_id: str, **values: Any) -> None:
        new: dict[str, Any] = {"payload": "new", "options": "new", "retries": 0}
        self.ledger.replace(self.runs[job_id], NextRun(**new | values), canvas=False, reason="replaced")

    def do_rejoin(self, job_id: str, *, canvas: bool, applied: bool = True) -> None:
        """Have a follower wait again, and assert whether it does."""
        assert self.ledger.rejoin(self.read(job_id), canvas=canvas) == (self.read(job_id) if applied else None)

    def do_report(self, job_id: str, progress: str) -> None:
        self.ledger.report(self.runs[job_id], progress)

    def do_step(self, job_id: str) -> None:
        self.ledger.keep_step(self.runs[job_id], "one", "1")

    def do_free(self, job_id: str) -> None:
        self.runs[job_id] = self.ledger.release_identity(self.runs[job_id])

    def do_claim(self, job_id: str, *, applied: bool) -> None:
        """Claim a job, and assert whether that is accepted; the answer has the job as it is."""
        answer = self.ledger.claim(job_id, nonce="a", node="n")
        assert (answer.applied, answer.job) == (applied, self.read(job_id))

    def do_renew(self, job_id: str, *, held: bool = True, cancel: int = 0) -> None:
        run = self.runs[job_id]
        renewal = Renewal(job_id, run.claim, held=held, cancel=cancel)  # type: ignore[arg-type]
        assert self.ledger.renew([(job_id, run.claim)]) == [renewal]

    def do_apply(self, job_id: str, event: str, **values: Any) -> None:
        """Apply a change to the job as it is."""
        support.apply(self.store, self.read(job_id), Transition(event), **values)

    def do_unsent(self, job_id: str) -> None:
        note_unsent(self.ledger, self.read(job_id))

    def do_canvas_error(self, job_id: str, error: str) -> None:
        note_canvas_error(self.ledger, self.read(job_id), error)

    def do_notified(self, job_id: str) -> None:
        self.ledger.mark_canvas_notified(self.read(job_id))

    # --- sweeps -----------------------------------------------------------------------------------------------------

    def do_pass(self, seconds: Any) -> None:
        self.clock.advance(self.value(seconds))

    def do_settings(self, **values: Any) -> None:
        self.use(LedgerSettings(**values))

    def do_sweep(
        self, by: str = "", tasks: str = "", gone: float | None = None, ends: list[bool] | None = None, **counts: int
    ) -> None:
        """Sweep, and assert what it did; where nothing is published, a publication fails.

        `gone`: in how many seconds messages are known to be gone. `ends`: whether it may end leases, each time it asks.
        """
        publish = self.publishers[by or ("broker" if "published" in counts else "nobody")]
        known: dict[str, Any] = {"gone_in": lambda _: gone} | ({"tasks": frozenset({tasks})} if tasks else {})
        if ends is not None:
            known["may_end_leases"] = partial(next, iter(ends))
        assert self.sweep(publish, **known) == SweepResult(**counts)

    def do_sent(self, *ids: str) -> None:
        """Assert which jobs were published since the last look, in any order."""
        assert sorted(self.sent_ids) == sorted(ids)
        self.sent.clear()

    def do_lost(self, *ids: str) -> None:
        """Say that messages are lost."""
        self.ledger.mark_lost(ids)

    def do_forget(self, job_id: str) -> None:
        """Delete a job behind the ledger's back."""
        job = self.read(job_id)
        assert self.store.delete([job_id], sources=frozenset({job.state})) == [job_id]

    # --- assertions -------------------------------------------------------------------------------------------------

    def do_changed(self, job_id: str, **columns: Any) -> None:
        """Assert exactly which columns of a job the last command changed."""
        assert self.read(job_id) == replace(self.before[job_id], **columns)

    def do_gone(self, *ids: str) -> None:
        """Assert that jobs do not exist, nor their histories."""
        assert [job_id for job_id in ids if not self.gone(job_id) or self.store.history(job_id)] == []

    def do_legal(self, *ids: str) -> None:
        for job_id in ids:
            self.assert_legal(job_id)

    def do_steps(self, job_id: str, number: str) -> None:
        assert len(self.store.steps(job_id)) == int(number)

    def do_holders(self, identity: str, *ids: str) -> None:
        assert [job.id for job in support.holders(self.store, identity)] == [*ids]
