"""Installing onejob, and importing it, binds nothing of Celery that other packages patch in an app."""

import subprocess
import sys
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

from tests.cases import for_each

PATCHED = ("celery.app.trace", "celery.apps", "celery.bin", "celery.concurrency", "celery.contrib", "celery.worker")
"""The modules of a worker. They hold functions of each other from their import on, so a package that replaces one of
those (sentry-sdk and celery-aio-pool `build_tracer`, New Relic and ddtrace others) has to be imported before."""
CLIENT = "import celery; celery.Celery, celery.Task, celery.shared_task, celery.signals"
"""What an app without a worker imports of Celery."""
HARMLESS = {
    "celery.app.amqp", "celery.app.routes", "celery.backends", "celery.backends.base", "celery.schedules",
    "celery.utils.saferepr",
}  # fmt: skip
"""What onejob adds to that: modules that hold no function of a worker."""
WITHOUT_COMMANDS = """
from importlib import metadata
find = metadata.entry_points
metadata.entry_points = lambda **group: () if group == {"group": "celery.commands"} else find(**group)
"""
ALL_MODULES = """
from importlib import import_module
from pkgutil import walk_packages
import onejob
OWN = ("onejob.celery.worker.", "onejob.celery.submission.call_types", "onejob.demo.", "onejob.django.")
for module in walk_packages(onejob.__path__, "onejob."):
    if not module.name.startswith(OWN) and not module.name.endswith("__main__"):
        import_module(module.name)
"""
DEFINES = """
import celery
{imports}
app = celery.Celery("shop", broker="onejob://", set_as_current=False)
app.conf.onejob_store = "sqlite:///{folder}/jobs.db"

@app.task(base={base})
def double(number):
    return 2 * number

app.finalize()
"""


@cache
def modules_after(code: str) -> frozenset[str]:
    """Return the modules of Celery and onejob that a process has after a script."""
    script = f"import sys\n{code}\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return frozenset(name for name in ran.stdout.split() if name.split(".")[0] in {"celery", "onejob"})


def test_the_command_of_celery_imports_light_modules() -> None:
    """`celery` loads its commands in apps without onejob, too: ours adds a name and a sentence, and nothing of Celery.

    The real group, with all its commands, is imported when somebody uses it.
    """
    plain = modules_after(f"{WITHOUT_COMMANDS}import celery.bin.celery")
    assert modules_after("import celery.bin.celery") - plain == {
        "onejob", "onejob.cli", "onejob.concurrency", "onejob.concurrency.worker_options"
    }  # fmt: skip
    shown = subprocess.run(
        [sys.executable, "-m", "celery", "onejob", "--help"], capture_output=True, text=True, check=True
    )
    assert "Inspect and operate the app's onejob jobs" in shown.stdout
    assert "duplicates" in shown.stdout


ENTRY_POINTS = {
    "celery.beat_schedulers": ("onejob.celery.beat.ticks:Scheduler", HARMLESS | {"celery.beat"}),
    "celery.commands": ("onejob.cli:celery_command", set[str]()),
    "celery.result_backends": ("onejob.celery.results.result_backend:open_backend", HARMLESS),
    "console_scripts": ("onejob.cli.commands:main", HARMLESS),
    "opentelemetry_instrumentor": ("onejob.opentelemetry:OneJobInstrumentor", set[str]()),
    "pytest11": ("onejob.testing.plugin", set[str]()),
}
"""The object of each entry point, and what it adds to the modules of Celery that an app has."""


def test_each_entry_point_is_known() -> None:
    """An entry point is code that runs in apps without onejob: a new one has to say here what it imports."""
    found = {each.group: each.value for each in distribution("onejob").entry_points}
    assert found == {group: value for group, (value, _) in ENTRY_POINTS.items()}


@for_each("group", ENTRY_POINTS)
def test_an_entry_point_imports_what_is_written_here(group: str) -> None:
    """An entry point adds these modules of Celery, and no others, to those of an app."""
    value, added = ENTRY_POINTS[group]
    after = modules_after(f"{CLIENT}\nfrom importlib.metadata import EntryPoint\nEntryPoint('', {value!r}, '').load()")
    assert {name for name in after - modules_after(CLIENT) if name.startswith("celery")} == added


@for_each("name", ("onejob", "onejob.celery", "onejob.cli", "onejob; onejob.Task"))
def test_an_import_binds_nothing_of_a_worker(name: str) -> None:
    """An app that has imported onejob can still be patched: no module of a worker was imported."""
    assert modules_after(f"{CLIENT}\nimport {name}") - modules_after(CLIENT) - HARMLESS == {
        module for module in modules_after(f"import {name}") if module.startswith("onejob")
    }


def test_no_module_of_the_package_binds_anything_of_a_worker() -> None:
    """This holds for each module but those of the worker itself, of Django's app and of the demo, which bind tasks."""
    assert not {name for name in modules_after(ALL_MODULES) if name.startswith(PATCHED)}


@for_each("then", ("", "double.delay(1)"))
def test_a_task_that_is_bound_or_submitted_imports_what_a_plain_task_does(tmp_path: Path, then: str) -> None:
    """Celery imports some modules of its worker for any task: a task of onejob adds none, and a submission none."""
    plain = modules_after(DEFINES.format(imports="", base="celery.Task", folder=tmp_path))
    ours = modules_after(DEFINES.format(imports="import onejob", base="onejob.Task", folder=tmp_path) + then)
    assert {name for name in ours - plain if name.startswith(PATCHED)} == set()
