"""Whose secret signs a webhook: that of the submitter who asked for it, whatever becomes of the job."""

import base64
from collections.abc import Callable
from typing import Any

import pytest
from standardwebhooks import WebhookVerificationError

import onejob
from onejob import Outcome
from onejob.client.jobs import edit
from onejob.client.operation import Operation
from onejob.client.operator import Operator
from onejob.jobs.lifecycle import State, Transition
from onejob.ledger.dead_letters import select_dead_letters
from onejob.observability.metrics import WEBHOOK_TASK
from tests.celery.harness import Cluster
from tests.quiet import provokes
from tests.webhooks.receiver import SECRET, SETTINGS, Receiver

OWN = {name: f"whsec_{base64.b64encode(name.encode() * 6).decode()}" for name in ("alice", "bill", "carol")}
SECRETS = OWN | {"nobody": SECRET}
QUICK = {"test_webhooks": [0.2, 0.2]}


class Signed:
    """Asks for webhooks in the name of submitters, and verifies who signed what arrives."""

    def __init__(self, cluster: Cluster, receiver: Receiver) -> None:
        self.cluster = cluster
        self.receiver = receiver

    def submit(self, name: str, key: str, act: str = "hold", path: str = "/ok", **more: Any) -> Any:
        """Submit a call in the name of a submitter, with a webhook that `verify` finds by both."""
        task, data = self.cluster.app.tasks[more.pop("task", "play")], more.pop("data", None)
        url = self.receiver.url(f"{path}/{name}-{key}")
        if name == "nobody":
            return task.apply_async((key, [act], data), webhook_url=url, **more)
        with onejob.submitter(name):
            return task.apply_async((key, [act], data), webhook_url=url, **more)

    def verify(self, name: str, key: str, times: int = 1, path: str = "/ok") -> Any:
        """Return the latest event, which only the secret of this submitter verifies."""
        got = self.receiver.await_(f"{path}/{name}-{key}", times)[-1]
        for other, secret in SECRETS.items():
            if other != name:
                with pytest.raises(WebhookVerificationError):
                    got.verified(secret)
        return got.verified(SECRETS[name])


@pytest.fixture
def signed(new_cluster: Callable[..., Cluster], receiver: Receiver) -> Signed:
    secrets = {name: [secret] for name, secret in OWN.items()}
    return Signed(new_cluster(**SETTINGS, **QUICK, onejob_webhook_submitter_secrets=secrets), receiver)


def test_who_asks_for_a_webhook_signs_it(signed: Signed) -> None:
    """Of one job the webhooks of its submitter, of duplicates and of followers are signed each by who asked."""
    own = signed.submit("alice", "k")
    for name in ("bill", "nobody"):
        assert signed.submit(name, "k").id == own.id
    follower = signed.submit("carol", "k", task_id="of-carol")
    first = signed.submit("alice", "n", "return", task="play_replace", countdown=600)
    newer = signed.submit("bill", "n", "return", task="play_replace", data="newer")
    assert (newer.id, newer.outcome) == (first.id, Outcome.REPLACED)
    replaced = signed.submit("carol", "r", "replace:echo", data=["passed on"])
    signed.cluster.worker()
    signed.cluster.open("k")
    for name in ("alice", "bill", "nobody"):
        assert signed.verify(name, "k")["subject"] == own.id
    assert signed.verify("carol", "k")["subject"] == follower.id == "of-carol"
    for name in ("alice", "bill"):
        assert signed.verify(name, "n")["subject"] == first.id
    event = signed.verify("carol", "r")
    assert (event["subject"], event["data"]["result"]) == (replaced.id, "passed on")
    signed.cluster.assert_quiet()


def test_a_revoked_follower_reports_its_own_end(signed: Signed) -> None:
    """The webhook of a follower that is revoked says canceled, and that of the job that it followed completed."""
    signed.submit("alice", "k")
    follower = signed.submit("bill", "k", task_id="of-bill")
    signed.cluster.ledger.cancel(follower.id)
    signed.cluster.worker()
    signed.cluster.open("k")
    assert signed.verify("alice", "k")["type"] == "onejob.job.completed"
    event = signed.verify("bill", "k")
    assert (event["type"], event["subject"]) == ("onejob.job.canceled", "of-bill")


def test_an_edited_job_keeps_who_signs(signed: Signed) -> None:
    """Each webhook of a dead letter is one of the job that is submitted in its place, signed by who asked for it."""
    cluster = signed.cluster
    dead = signed.submit("alice", "k", "hold>raise:no")
    for name in ("bill", "nobody"):
        signed.submit(name, "k", "hold>raise:no")
    cluster.worker()
    cluster.open("k")
    cluster.await_state(dead, State.FAILED)
    names = ("alice", "bill", "nobody")
    assert {signed.verify(name, "k")["type"] for name in names} == {"onejob.job.failed"}
    edited = edit(cluster.app, cluster.ledger, dead.id, args=["k", ["return"]]).job
    assert edited.submitter == "alice"
    for name in names:
        event = signed.verify(name, "k", 2)
        assert (event["type"], event["subject"]) == ("onejob.job.completed", edited.id)
    submitters = {job.submitter for job in cluster.jobs(task=WEBHOOK_TASK) if job.follows_id == edited.id}
    assert submitters == {"alice", "bill", ""}


@provokes(Transition.RETRY, because="the receiver refuses three times")
def test_a_redriven_job_and_its_redriven_webhooks_keep_who_signs(signed: Signed) -> None:
    """A webhook of a redriven job is signed by who asked, and a dead letter of a webhook by who asked for that."""
    cluster = signed.cluster
    operator = Operator(app=cluster.app, ledger=cluster.ledger, origin="by the test")
    jobs = {name: signed.submit(name, name, "raise:no", "/times/3") for name in ("alice", "nobody")}
    one = cluster.worker()
    for result in jobs.values():
        cluster.await_state(result, State.FAILED)
    dead = [cluster.await_state(webhook.id, State.FAILED) for webhook in cluster.jobs(task=WEBHOOK_TASK)]
    one.stop()
    selection = select_dead_letters(job_ids=[jobs["alice"].id, jobs["nobody"].id, *(job.id for job in dead)])
    assert len(operator.operate_many(Operation.REDRIVE, selection).done) == 4
    for name, result in jobs.items():
        assert signed.submit("bill", name, "raise:no").id == result.id
    cluster.worker()
    for name, result in jobs.items():
        assert signed.verify(name, name, 4, "/times/3")["subject"] == result.id
        assert signed.verify("bill", name)["subject"] == result.id
