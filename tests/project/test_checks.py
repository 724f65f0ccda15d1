"""Each check of the project's files can fail: it finds a fault, names its place, and leaves alone what is right."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import checks.__main__  # noqa: F401 - it has all checks
from checks.deploy import COMPOSE
from checks.kubernetes import FOLDER
from checks.monitoring import BOARD, PROMTOOL, RULE_TESTS, RULES
from checks.packaging import FORMS, WORKFLOWS
from checks.project import CHECKS, PACKAGE, ROOT, SOURCE, Project, paths, read_project
from checks.suite import GUIDE, MUTANTS
from checks.types import compare
from tests.cases import for_each

CORE = f"{SOURCE}jobs/x.py"
STORE = f"{SOURCE}stores/redis/"
TEST = "tests/test_x.py"
LAW = '    """Water is wet."""\n'
FENCE = "`" * 3
FINDING = """#!/bin/sh
# celery 5.7.0, seen 2026-11-28.
# Expected: a
#   b
# Happens: c
# Means: d
"""
MUTANT = """[tests]
"ledger/sweep.py" = ""
[[equivalent]]
module = "ledger/sweep.py"
function = ""
before = "MAX_DOUBLINGS = 32"
after = "MAX_DOUBLINGS = 33"
reason = "both are decades"
"""
FAULTS = [
    ("file_names", {f"{SOURCE}utils.py": ""}, "utils.py:1: a name that says what is inside"),
    ("file_names", {f"{SOURCE}Jobs2.py": ""}, "Jobs2.py:1: a name that says what is inside"),
    ("names", {CORE: "class A:\n    epoch: int\n"}, f"{CORE}:2: epoch: say token"),
    ("names", {CORE: "def enqueue(): pass\n"}, "enqueue: say submit"),
    ("names", {CORE: "def f(ttl): pass\n"}, "ttl: say lease"),
    ("names", {CORE: "\n'onejob_ttl'\n"}, ":2: ttl: say lease"),
    ("verbs", {CORE: "def _came(): pass\n"}, f"{CORE}:1: _came"),
    ("sizes", {CORE: "@a\n@b\ndef f():\n" + "    x = 1\n" * 58}, f"{CORE}:3: f has 61 lines"),
    ("sizes", {CORE: "def f():\n" + "    x = 1\n" * 40}, "fewer than 90%"),
    ("clocks", {CORE: "import datetime as d\nx = d.datetime.now(d.UTC)\n"}, f"{CORE}:2: d.datetime.now reads a clock"),
    ("docstrings", {CORE: '\n"""It waits."""\n'}, f"{CORE}:2: 'It' stands for no noun"),
    ("identity_imports", {f"{SOURCE}uniqueness/identity.py": "import celery\n"}, ":1: identities depend on celery"),
    ("statement_operations", {f"{STORE}claim.lua": ""}, "is named submit"),
    ("statement_headers", {f"{STORE}claim.lua": "return 1\n"}, "claim.lua:1: claim: say what goes in"),
    ("statement_uses", {f"{STORE}core.sql": "-- name: one\na\n-- name: two\nb\n", f"{STORE}a.py": "'one'"}, ".sql:3: "),
    ("redis_rights", {
        f"{SOURCE}stores/redis/a.lua": "redis.call('GET', 'a')\nredis.call('SET', 'a')\n",
        "docs/operations/redis-user.md": "\n## For the ledger\n+get\n## For Celery\n+set\n",
    }, "redis-user.md:2: the rights of a user lack set"),
    ("own_words", {"x.py": "open('{}home/ann/ledger.db')".format("/")}, "x.py:1: a folder"),
    ("own_words", {"x.py": "C:{}Users".format("\\")}, "a drive"),
    ("own_words", {"x.py": "\nredis://192.168{}1.7:6379".format(".")}, "x.py:2: an address"),
    ("own_words", {"x.py": "--index{}url=example".format("-")}, "a package index"),
    ("own_words", {"x.py": "Fixes #{}12".format("")}, "a number"),
    ("links", {"a.md": "\n[a](gone.md#x)"}, "a.md:2: there is no gone.md#x"),
    ("links", {"a.md": "[f](https://github.com/onejob/onejob/blob/main/gone.py#x)"}, "there is no https"),
    ("readme", {"README.md": "[a](docs/x.md)\n"}, "README.md:1: there is no docs/x.md"),
    ("readme", {"README.md": '<img src="x.png">'}, "README.md:1: there is no x.png"),
    ("readme", {"README.md": "[a](https://github.com/onejob/onejob#a)\n"}, "README.md:1: the link https://github.com/"),
    ("readme", {"README.md": "[a](http://example.org)\n"}, "http://example.org is not absolute"),
    ("readme", {"README.md": f"# a\n\nb\n\n{FENCE}sh\nls\n{FENCE}\n"}, "README.md:1: the first block"),
    ("readme", {"README.md": "x" * 8001}, "README.md:1: 8001 bytes"),
    ("prose_lines", {"a.md": "a word\n\n" + "word " * 33}, "a.md:3: 165 characters"),
    ("index", {"docs/README.md": "\n## Start\n[a](guides/a.md)"}, "docs/README.md:3: guides/a.md is not in docs/start"),
    ("index", {"docs/README.md": "[a](a.md)", "docs/a.md": "", "docs/b.md": ""}, "no link to b.md"),
    ("decisions", {"docs/decisions/0001-a.md": "# A\n\nSo it is.\n"}, "docs/decisions/0001-a.md:3: begin with"),
    ("findings", {"findings/README.md": "", "findings/a.sh": FINDING}, "findings/README.md:1: no row for a.sh"),
    ("findings", {"findings/README.md": "[a](a.sh)", "findings/a.sh": FINDING.replace("Means", "So")}, "a.sh:2: begin"),
    ("requests_with_keys", {"README.md": "$ curl http://x"}, "README.md:1: a request without the key"),
    ("generated", {}, "docs/concepts/lifecycle.md:1: not current"),
    ("generated", {}, "docs/reference/cli.md:1: not current"),
    ("settings_page", {"docs/reference/settings.md": "| `onejob_gone` | 1 |"}, "settings.md:1: onejob_gone is unknown"),
    ("settings_page", {"docs/reference/settings.md": "| `onejob_lease` | 1 |"}, "the default of onejob_lease is"),
    ("settings_page", {"docs/reference/settings.md": ""}, "unique_on is missing"),
    ("features_page", {"docs/reference/celery.md": ""}, "worker_state_db of Celery has no row"),
    ("features_page", {"docs/reference/celery.md": "| `task_gone` |"}, "celery.md:1: Celery has no task_gone"),
    ("features_page", {"docs/reference/celery.md": "`worker_*`"}, "celery.md:1: acks_late of Celery has no row"),
    ("series_page", {
        "docs/operations/observability.md": "| series |\n|---|\n| `a` | b | c |\n",
    }, "not the series of the code"),
    ("problems_page", {
        "docs/reference/problems.md": "| `gone` | 410 |",
    }, "problems.md:1: problem types: [('gone', 410)]"),
    ("block_languages", {"docs/a.md": f"\n{FENCE}\nx\n{FENCE}\n"}, "docs/a.md:2: a block without"),
    ("block_languages", {"docs/a.md": f"<!-- check: skip -->\n{FENCE}sh\nx\n{FENCE}\n"}, "without a reason"),
    ("block_languages", {"docs/a.md": "<!-- check: tested by tests/x.py -->"}, "tests/x.py does not test this page"),
    ("block_commands", {"docs/a.md": f"{FENCE}sh\nonejob jobs lst\n{FENCE}\n"}, "docs/a.md:1: onejob jobs lst: No"),
    ("block_syntax", {"docs/a.md": f"{FENCE}python\nx = \n{FENCE}\n"}, "docs/a.md:1: this block cannot be parsed"),
    ("block_syntax", {"docs/a.md": f"{FENCE}yaml\na: [\n{FENCE}\n"}, "cannot be parsed"),
    ("public_imports", {"examples/x.py": "import onejob\nimport onejob.jobs.model\n"}, "x.py:2: onejob.jobs.model is"),
    ("public_imports", {"examples/x.py": "from onejob.api import app\n"}, "x.py:1: onejob.api.app is not public"),
    ("public_imports", {"scripts/x": "#!/usr/bin/env python3\nfrom onejob import jobs\n"}, "x:2: onejob.jobs is not"),
    ("public_imports", {"docs/a.md": f"\n{FENCE}python\nimport onejob\nonejob.tusk\n{FENCE}\n"}, "a.md:4: onejob.tusk"),
    ("laws", {TEST: "def test_mute():\n    assert x\n"}, f"{TEST}:1: test_mute: the docstring"),
    ("laws", {TEST: f"def idle(x): pass\ndef test_idle():\n{LAW}    idle(x)\n"}, ":2: test_idle asserts nothing"),
    ("laws", {TEST: f"def test_true():\n{LAW}    assert True\n"}, "test_true asserts nothing"),
    ("packed_assertions", {TEST: "assert (a, b in c) == (1, True)\n"}, f"{TEST}:1: assert each of these by itself"),
    ("packed_assertions", {TEST: "assert (a, b, c, d, e) == (1, 2, 3, 4, 5)\n"}, f"{TEST}:1: assert each of these"),
    ("paths_of_tests", {"a.md": "\nsee tests/gone.py::test_x"}, "a.md:2: there is no tests/gone.py"),
    ("suite_guide", {GUIDE: "`a`", "tests/b.py": ""}, "tests/b.py:1: tests/README.md does not name b.py"),
    ("suite_guide", {GUIDE: "", "tests/x/conftest.py": "@pytest.fixture()\ndef b(): ...\n"}, "name the fixture b"),
    ("doctor_tests", {TEST: ""}, "no test names the check"),
    ("mutants", {MUTANTS: MUTANT.replace("33", "35")}, f"{MUTANTS}:7: this mutant of ledger/sweep.py"),
    ("mutants", {MUTANTS: MUTANT.replace("both are decades", "")}, f"{MUTANTS}:7: this mutant of ledger/sweep.py"),
    ("mutants", {MUTANTS: MUTANT.replace("[tests]\n", "[tests]\n#")}, f"{MUTANTS}:7: ledger/sweep.py is not in"),
]  # fmt: skip
"""A check, files with one fault, and what the check says of it."""
EDITS = [
    ("locks", "requirements/demo.txt", "rich==", "rich==1", "requirements/demo.txt:"),
    ("locks", "requirements/server.txt", "--hash=sha256:", "--hash=", "or no hash"),
    ("locks", "requirements/oldest.txt", "redis==5", "redis==3", "is not redis"),
    ("locks", "requirements/dev.txt", "#", "--index{}url x\n#".format("-"), "where to get packages"),
    ("package_links", "pyproject.toml", "/blob/main/CHANGELOG.md", "/blob/main/GONE.md", "pyproject.toml:"),
    ("make_help", "Makefile", "lock: $(VENV)/pyvenv.cfg ## R", "lock: $(VENV)/pyvenv.cfg # R", "lock has no help"),
    ("workflows", f"{WORKFLOWS}checks.yml", "make lint", "make lnt", "no target lnt"),
    ("workflows", f"{WORKFLOWS}checks.yml", "actions/checkout@3d", "actions/checkout@v", "is not pinned"),
    ("workflows", f"{WORKFLOWS}checks.yml", "contents: read", "contents: write", "may only read"),
    ("workflows", f"{WORKFLOWS}checks.yml", "run: make docs", "run: echo ${{ github.event.x }}", "would be run"),
    ("workflow_pins", f"{WORKFLOWS}release.yml", "uv==", "uv==0.0.", "is in no lock"),
    ("workflow_pins", f"{WORKFLOWS}release.yml", "--hash=sha256:", "--hash=sha256:00", "is in no lock"),
    ("workflows", f"{WORKFLOWS}checks.yml", "timeout-minutes", "timeout", "has no timeout-minutes"),
    ("tested_pythons", f"{WORKFLOWS}checks.yml", '"3.14"]', '"3.15"]', "the tested Pythons"),
    ("publication", f"{WORKFLOWS}release.yml", "id-token: write", "id-token: read", "who may publish"),
    ("hooks", ".pre-commit-config.yaml", "entry: make lint", "entry: make format", "does not run `make format`"),
    ("hooks", f"{WORKFLOWS}checks.yml", "run: make imports", "run: make lint", "does not run `make imports`"),
    ("issue_forms", f"{FORMS}bug.yml", "type: textarea", "type: essay", "no field of the type essay"),
    ("unit_sandboxes", "deploy/systemd/office-api.service", "UMask=0077", "UMask=0022", "service:"),
    ("unit_stops", "deploy/systemd/office-worker@.service", "KillMode=mixed", "KillMode=process", "KillMode"),
    ("unit_stops", "deploy/systemd/office-worker@.service", "TimeoutStopSec=40", "TimeoutStopSec=4", "too short"),
    ("unit_stops", "deploy/systemd/office-worker@.service", "--concurrency=4", "--concurency=4", "No such option"),
    ("unit_migration", "deploy/systemd/office-api.service", "office-migrate.service", "x.service", "do not fit"),
    ("compose_secrets", COMPOSE, "POSTGRES_PASSWORD_FILE:", "POSTGRES_PASSWORD:", "is a secret in an environment"),
    ("compose_secrets", COMPOSE, "secrets: [store, broker] #", "secrets: [store] #", "secrets of worker"),
    ("compose_folders", COMPOSE, "secrets/server:/run/onejob:ro", "secrets/server:/run/keys:ro", "deploy/Dockerfile:1"),
    ("compose_folders", COMPOSE, "tmpfs: [/tmp, /run/worker]", "tmpfs: [/tmp, /run/w]", "folders for a tmpfs"),
    ("compose_worker", COMPOSE, "stop_grace_period: 40s", "stop_grace_period: 20s", "stop_grace_period is shorter"),
    ("compose_worker", COMPOSE, "probe, --ready,", "probe, --redy,", "No such option"),
    ("job_api_settings", "examples/job_api/README.md", "JOB_API_LEASE", "JOB_API_LEAS", "README.md:1: settings: ["),
    ("manifest_schemas", f"{FOLDER}worker.yaml", "replicas:", "replica:", "worker.yaml:1: Deployment"),
    ("manifest_commands", f"{FOLDER}worker.yaml", "--ready", "--redy", "No such option"),
    ("manifest_files", f"{FOLDER}kustomization.yaml", "# - scale.yaml", "# scale.yaml", "resources"),
    ("manifest_files", f"{FOLDER}kustomization.yaml", "secrets/keys.json]", "secrets/key.json]", "the comment makes"),
    ("manifest_settings", f"{FOLDER}config.yaml", "JOB_API_LEASE:", "JOB_API_LEAS:", "the app reads no JOB_API_LEAS"),
    ("manifest_stops", f"{FOLDER}worker.yaml", "PeriodSeconds: ", "PeriodSeconds: 1 #", "shorter"),
    ("manifest_probes", f"{FOLDER}api.yaml", "path: /readyz", "path: /healthz", "the routes of the probes"),
    ("manifest_rights", f"{FOLDER}worker.yaml", "RootFilesystem: true", "RootFilesystem: false", "rights of"),
    ("manifest_rights", f"{FOLDER}api.yaml", "sizeLimit: 64Mi", "medium: Memory", "has no sizeLimit"),
    ("manifest_network", f"{FOLDER}network.yaml", "10.0.0.0/8", "10.0.0.0/9", "a worker may reach 10.0.0.0/8"),
    ("manifest_network", f"{FOLDER}network.yaml", "2000::/3", "::/0", "a worker may reach ::1/128"),
    ("manifest_labels", f"{FOLDER}disruption.yaml", "maxUnavailable: 1", "maxUnavailable: 2", "the budget of"),
    ("manifest_network", f"{FOLDER}network.yaml", "ingress: []", "ingress: [{}]", "what may enter everywhere"),
    ("manifest_scaler", f"{FOLDER}scale.yaml", "Ref: { name: onejob-", "Ref: { name: one-", "no deployment one-worker"),
    ("manifest_scaler", f"{FOLDER}worker.yaml", "--concurrency=2", "--concurrency=3", "the concurrency of a worker"),
    ("queries", RULES, "onejob_", "onejob_no_", "there is no metric onejob_no_"),
    ("queries", BOARD, "by (le", "by (lee", "has the label lee"),
    ("queries", f"{FOLDER}scale.yaml", "{queue=", "{queues=", "onejob_queue_due has no label queues"),
    ("dashboard", BOARD, '"refId": "B"', '"refId": "A"', "two queries of one id"),
    ("dashboard", BOARD, '"w": 12', '"w": 25', "is not within 24 columns"),
    ("alerts", RULES, "severity: critical", "severity: high", "the severity is warning or critical"),
    ("alerts", RULES, "runbook_url: https", "runbook_url: http", "there is no http:"),
    *([("prometheus", RULE_TESTS, "alertname:", "alertnme:", "alerts.yaml:1")] if PROMTOOL else []),
]  # fmt: skip
"""A check, a file of the project with a part of it and what stands there instead, and what the check says of it."""
ELSEWHERE = {"unit_analysis", "manifest_build", "prometheus"}
"""The checks by programs that not every machine has."""


def test_every_check_is_tested() -> None:
    """Each check has a fault that it has to find."""
    assert CHECKS.keys() - {row[0] for row in FAULTS} - {row[0] for row in EDITS} <= ELSEWHERE


@for_each("name, files, told", FAULTS)
def test_a_fault_is_found(name: str, files: dict[str, str], told: str) -> None:
    """A check finds a fault, and names it with its file and its line."""
    assert told in "\n".join(CHECKS[name](Project(files)))


@for_each("name, place, before, after, told", EDITS)
def test_an_edit_is_found(name: str, place: str, before: str, after: str, told: str) -> None:
    """A check finds one wrong word in a file of the project."""
    whole = read_project()
    assert before in whole[place]
    assert told in "\n".join(CHECKS[name](Project({**whole.files, place: whole[place].replace(before, after)})))


@for_each("name, files", [
    ("names", {CORE: "task.add_done_callback(f)\nredis.ttl('x')\nqueue.reaper()\n"}),
    ("own_words", {"x.py": "sqlite:////var/lib/app/ledger.db 127.0.0.1 colour: #123456 src/home/x"}),
    ("links", {"a.md": "[a](a.md#x) [b](#here) [c](docs) [d](https://github.com/onejob/onejob#x)", "docs/b": ""}),
    ("mutants", {MUTANTS: MUTANT}),
    ("findings", {"findings/README.md": "[a](a.sh)", "findings/a.sh": FINDING, "findings/lib.sh": ""}),
    ("packed_assertions", {TEST: "assert (a, b) == (1, 2)\nassert (a, b) == c\n"}),
    ("laws", {TEST: f"def wet(x):\n    assert x\ndef soaked(x):\n    wet(x)\ndef test_a():\n{LAW}    soaked(1)\n"}),
])  # fmt: skip
def test_what_is_right_is_left_alone(name: str, files: dict[str, str]) -> None:
    """A library's name, any machine's path, a real mutant, and a test that asserts by a helper are no faults."""
    assert [*CHECKS[name](Project(files))] == []


def test_unexpected_types_are_seen() -> None:
    """An error of a type checker that no comment expects, and one that does not come, are faults of the samples."""
    lines = {("a.py", 1): {"arg-type"}, ("a.py", 2): {"call-arg"}}
    assert [*compare({("a.py", 1, "arg-type"), ("a.py", 3, "misc")}, lines)] == [
        "checks/samples/a.py:3: misc is not expected", "checks/samples/a.py:2: no error is reported",
    ]  # fmt: skip


IMPORTS = {
    "errors.py": ("from onejob import jobs", "onejob.errors -> onejob.jobs"),
    "stores/protocol.py": ("from onejob import ledger", "onejob.stores.protocol -> onejob.ledger"),
    "celery/messages/payload.py": ("from onejob.celery import task", "No cycles are allowed in onejob.celery."),
    "demo/supervisor.py": (
        "if 0:\n    from onejob.demo.scenario import run_demo",
        "No cycles are allowed in onejob.demo.",
    ),
    "ledger/ledger.py": ("import time", "onejob.ledger.ledger -> time"),
    "jobs/model.py": ("import celery", "onejob.jobs.model -> celery"),
    "stores/sqlite/store.py": ("from onejob.stores import redis", "onejob.stores.sqlite.store -> onejob.stores.redis"),
    "stores/redis/__init__.py": ("import kombu", "onejob.stores.redis -> kombu"),
}
"""A wrong import for each module, and what is said of it; together they break every contract of pyproject.toml."""
LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))"


def lint_imports(source: Path) -> str:
    """Return what import-linter says of the package that lies in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(source), "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-c", LINT]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False).stdout


def test_the_contracts_of_imports_can_fail(tmp_path: Path) -> None:
    """Each wrong import is reported, and breaks the contract that forbids it; a module without a place does, too."""
    for path in paths():
        if path.is_relative_to(PACKAGE):
            place = tmp_path / "onejob" / path.relative_to(PACKAGE)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
    for file, (line, _) in IMPORTS.items():
        with (tmp_path / "onejob" / file).open("a", encoding="utf-8") as module:
            module.write(f"\n{line}\n")
    told = lint_imports(tmp_path)
    assert "Contracts: 0 kept, 5 broken." in told, told
    assert [expected for _, expected in IMPORTS.values() if expected not in told] == [], told
    (tmp_path / "onejob" / "helpers.py").touch()
    assert "Imports go one way, and every package has its place BROKEN" in lint_imports(tmp_path)
