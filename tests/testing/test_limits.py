"""Limits in the tests of users: `run_all` respects them, and `travel` gives rates their tokens back."""

import onejob
from onejob.testing import Jobs
from tests.testing import shop


def test_run_all_starts_what_a_rate_permits_and_travel_the_rest(jobs: Jobs) -> None:
    """Of five calls of a rate of two a minute, two run at once, and each half minute one more."""
    results = [shop.ask.delay("model", number) for number in range(5)]
    assert jobs.run_all() == 2
    assert [each.job.state for each in results].count(onejob.State.QUEUED) == 3
    done = []
    for _ in range(3):
        jobs.travel(seconds=31)
        jobs.run_all()
        done.append([each.job.state for each in results].count(onejob.State.COMPLETED))
    assert done == [3, 4, 5]


def test_run_all_runs_all_jobs_of_a_limit_of_one(jobs: Jobs) -> None:
    """Jobs that wait for each other run one after the other; a job that is stopped waits until it is not."""
    results = [shop.charge_one.delay("customer", number) for number in range(3)]
    jobs.client.set_limit("customer=stopped", "0", until=None)
    stopped = shop.charge_one.delay("stopped", 1)
    jobs.run_all()
    assert [each.get(timeout=0) for each in results] == [0, 1, 2]
    assert stopped.job.state is onejob.State.QUEUED
    assert "It waits for customer=stopped: stopped" in " ".join(jobs.client.why(stopped.id).sentences)
    jobs.client.clear_limit("customer=stopped")
    jobs.run_all()
    assert stopped.get(timeout=0) == 1


def test_the_weight_that_a_run_had_is_corrected(jobs: Jobs) -> None:
    """`spent` gives tokens back that a job had not needed, so that the next one starts at once."""
    first, second, third = shop.weigh.delay(8, 1), shop.weigh.delay(7, 7), shop.weigh.delay(2, 2)
    jobs.run_all()
    assert (first.get(timeout=0), second.get(timeout=0)) == (1, 7)
    assert third.job.state is onejob.State.QUEUED
