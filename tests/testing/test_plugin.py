"""The plugin in real runs of pytest, of the tests that a user would write."""

import pytest

pytest_plugins = ["pytester"]
SHOP = """
import celery, onejob

app = celery.Celery("shop", broker="redis://broker.invalid:1/0", set_as_current=False)

@app.task(base=onejob.Task, unique_on=["order_id"], shared=False)
def invoice(order_id: int, note: str = "") -> str:
    return f"invoice {order_id}, attempt {onejob.current_job().attempt}"
"""
MARKED_MIXIN = """
from onejob.testing import JobsMixin
from unittest import TestCase

@pytest.mark.onejob(lease=5)
class Test(JobsMixin, TestCase):
    def test_it(self):
        pass
"""


@pytest.fixture(autouse=True)
def _no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, test: str, ini: str = "onejob_app = shop:app", shop: str = SHOP) -> pytest.RunResult:
    pytester.makepyfile(shop=shop, test_shop=test)
    pytester.makeini(f"[pytest]\npythonpath = .\nfilterwarnings = error\naddopts = --strict-markers\n{ini}\n")
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "onejob.testing.plugin")


PROGRAMS = [
    # with `onejob_app` in the configuration, both fixtures are there, and each test has a ledger of its own
    ("onejob_app = shop:app", 2, """
        from shop import invoice

        def test_equal_calls_are_one_job(jobs, onejob_ledger):
            first, again = invoice.delay(42), invoice.delay(42, note="again")
            assert (first.outcome, again.outcome) == ("admitted", "attached")
            jobs.run_all()
            assert again.get(timeout=0) == "invoice 42, attempt 1"
            assert onejob_ledger.get(first.id).state == "completed"

        def test_the_next_test_sees_nothing_of_it(jobs):
            jobs.assert_not_submitted(invoice)
    """),
    # the fixture of Celery's plugin is none of the project
    ("onejob_app = shop:app", 1, """
        import shop
        from celery.contrib.pytest import celery_app, celery_config, celery_enable_logging, celery_parameters
        from celery.contrib.pytest import use_celery_app_trap

        def test_it(jobs):
            assert jobs.app is shop.app
    """),
    # without the setting, the app is that of a fixture `celery_app`
    ("", 1, """
        import pytest, shop

        @pytest.fixture
        def celery_app():
            return shop.app

        def test_it(jobs):
            assert jobs.app is shop.app
    """),
    # the marker has jobs run within their submissions, and gives settings; the nearest wins
    ("onejob_app = shop:app", 3, """
        import pytest
        from shop import invoice

        pytestmark = pytest.mark.onejob(lease=50, crash_limit=5)

        @pytest.mark.onejob(eager=True, lease=40)
        def test_it(jobs):
            result = invoice.delay(1)
            assert result.get(timeout=0) == "invoice 1, attempt 1"
            assert (jobs.app_state.settings.lease, jobs.app_state.settings.crash_limit) == (40, 5)

        def test_not_eager(jobs):
            assert invoice.delay(1).state == "PENDING"

        @pytest.mark.onejob(lease=6)
        def test_a_short_lease(jobs):
            result = invoice.delay(1)
            assert jobs.ledger.get(result.id).lease == 6
    """),
    # an app that a fixture of the module isolates is left alone, so that its tests share one ledger
    ("onejob_app = shop:app", 2, """
        import pytest, shop
        from onejob.testing import isolated

        @pytest.fixture(scope="module", autouse=True)
        def one_ledger():
            with isolated(shop.app):
                yield

        def test_one():
            assert shop.invoice.delay(1).outcome == "admitted"

        def test_two():
            assert shop.invoice.delay(1).outcome == "attached"
    """),
    # a fixture of the session is set up outside of the isolation, so that what it sets outlives the first test
    ("onejob_app = shop:app", 2, """
        import pytest, shop

        @pytest.fixture(scope="session")
        def configured():
            shop.app.conf.timezone = "Asia/Tokyo"

        @pytest.mark.onejob
        @pytest.mark.parametrize("number", [1, 2])
        def test_it(configured, number):
            assert shop.app.conf.timezone == "Asia/Tokyo"
            assert shop.invoice.delay(number).outcome == "admitted"
    """),
    # without the setting the plugin has no fixture of its own in a test
    ("", 1, """
        def test_it(request):
            assert request.fixturenames == ["request"]
            assert not request.config.pluginmanager.hasplugin("onejob guard")
    """),
]  # fmt: skip


@pytest.mark.parametrize(
    ("ini", "passed", "test"),
    PROGRAMS,
    ids=["setting", "celery's plugin", "fixture", "marker", "wider fixture", "session", "neither"],
)
def test_the_app_and_its_settings_are_chosen(pytester: pytest.Pytester, ini: str, passed: int, test: str) -> None:
    """A setting or a fixture gives the app, and markers its settings; a project with neither is left alone."""
    run(pytester, test, ini=ini).assert_outcomes(passed=passed)


@pytest.mark.parametrize(("ini", "message"), [
    ("", "*onejob does not know your Celery app*"), ("onejob_app = shoop:app", "*names no Celery app*"),
])  # fmt: skip
def test_a_missing_app_is_explained(pytester: pytest.Pytester, ini: str, message: str) -> None:
    """A project without an app, or with a misspelled one, gets an error that says where to write it."""
    result = run(pytester, "def test_it(jobs): pass", ini=ini)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])


def test_a_test_without_the_fixture_does_not_reach_the_real_ledger(pytester: pytest.Pytester) -> None:
    """With `onejob_app`, a submission without `jobs` is refused, also of an app that the test itself imports."""
    test = """
        from pathlib import Path
        import onejob, pytest
        from onejob.celery.app_state import app_state_of
        from onejob.testing import isolated

        @pytest.fixture
        def order():
            from shop import invoice
            return invoice.delay(1)

        def refuse():
            from shop import app, invoice
            app.conf.update(onejob_store="sqlite:///real.db", broker_url="memory://")
            with pytest.raises(onejob.errors.ConfigurationError, match="request the fixture `jobs`"):
                invoice.delay(1)
            assert not Path("real.db").exists()

        @pytest.mark.parametrize("time", ["importing the app", "after the import"])
        def test_a_submission(time):
            refuse()

        def test_with_a_block_of_its_own():
            from shop import app, invoice
            with isolated(app):
                assert invoice.delay(1).outcome == "admitted"

        @pytest.mark.onejob(isolated=False)
        def test_on_the_real_ledger():
            from shop import app, invoice
            assert invoice.delay(1).outcome == "admitted"
            assert Path("real.db").exists()
            app_state_of(app).ledger.close()

        def test_after_the_ledger_was_opened():
            from shop import invoice
            with pytest.raises(onejob.errors.ConfigurationError, match="request the fixture `jobs`"):
                invoice.delay(1)

        @pytest.mark.onejob
        def test_with_the_marker(order):
            assert order.outcome == "admitted"
    """
    shop = SHOP.replace("redis://broker.invalid:1/0", "memory://")
    run(pytester, test, shop=shop).assert_outcomes(passed=6)


def test_a_fixture_wins_over_the_setting(pytester: pytest.Pytester) -> None:
    """With both, the app is that of the fixture `celery_app`, whose own missing fixture is not hidden."""
    test = """
        import celery, pytest

        @pytest.fixture
        def celery_app(request):
            if request.node.name == "test_missing":
                request.getfixturevalue("nothing")
            return celery.Celery("other", set_as_current=False)

        def test_it(jobs):
            assert jobs.app.main == "other"

        def test_missing(jobs):
            pass
    """
    result = run(pytester, test)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*fixture 'nothing' not found"])


@pytest.mark.parametrize(("test", "message"), [
    ("@pytest.mark.onejob(5)\ndef test_it(jobs): pass", "*takes options by name, such as onejob(lease=5)*"),
    ("@pytest.mark.onejob(isolated=False)\ndef test_it(jobs): pass", "*remove one of them*"),
    (MARKED_MIXIN, "*set jobs_settings of JobsMixin*"),
])  # fmt: skip
def test_a_marker_that_means_nothing_is_refused(pytester: pytest.Pytester, test: str, message: str) -> None:
    """Positional arguments, `isolated=False` with `jobs`, and the marker on a `JobsMixin` are errors with a remedy."""
    result = run(pytester, f"import pytest\n{test}\n")
    assert result.ret != pytest.ExitCode.OK
    (result.stdout if "isolated" in test else result.stderr).fnmatch_lines([message])
