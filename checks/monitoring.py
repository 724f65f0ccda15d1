"""The dashboard and the alerts in `deploy/` are about metrics that exist, and each alert fires for its cause alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from functools import cache
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from checks.project import check, differences, line_of
from onejob.jobs.limits import Limit
from onejob.jobs.workers import Registration
from onejob.ledger.ledger import Ledger
from onejob.observability.metrics import SERIES, Kind
from onejob.prometheus import render_metrics
from onejob.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checks.project import Project

BOARD = "deploy/grafana/onejob.json"
RULES, RULE_TESTS = "deploy/prometheus/alerts.yaml", "deploy/prometheus/alerts.test.yaml"
SCALER = "deploy/kubernetes/scale.yaml"
PROMTOOL = shutil.which(os.environ.get("ONEJOB_TEST_PROMTOOL", "promtool"))
"""The checker of Prometheus: that on the PATH, or the one that the environment names."""
SELECTOR = re.compile(r"(onejob_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
GROUPED = re.compile(r"\bby \(([^)]*)\)")
OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds to whatever it scrapes."""
NOT_SHOWN = ["claims_total", "changes_total"]
"""The number of started runs, which is that of the ended ones; and what people did, which pages compare."""
COLUMNS = 24


def _queries(board: dict[str, Any]) -> Iterator[str]:
    """Yield the queries of the panels."""
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def _rules(project: Project) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(project[RULES])["groups"] for rule in group["rules"]]


@cache
def _printed() -> dict[str, set[str]]:
    """Return the names that `/metrics` prints, each with its labels, for a ledger in which everything was counted."""
    with TemporaryDirectory() as folder:
        ledger = Ledger(open_store(f"sqlite:///{folder}/ledger.db"))
        for name, series in SERIES.items():
            if series.kind is not Kind.GAUGE:
                bucket = ["+Inf"] if series.kind is Kind.HISTOGRAM else []
                ledger.store.increment({json.dumps([name, *("x" for _ in series.labels), *bucket]): 1.0})
        ledger.define_limits([Limit(name="x", running=1).value()])
        ledger.store.heartbeat("x", lasts=60.0, registration=Registration(queues=("x",)))
        families = text_string_to_metric_families(render_metrics(ledger).decode())
        ledger.close()
        return {sample.name: {*sample.labels} for family in families for sample in family.samples}


@check
def queries(project: Project) -> Iterator[str]:
    """Each metric in a query is one that `/metrics` prints, and each label in a query is one of its labels."""
    board = json.loads(project[BOARD])
    variables = [each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    triggers = [trigger["metadata"] for trigger in yaml.safe_load(project[SCALER])["spec"]["triggers"]]
    found = [(BOARD, query) for query in [*_queries(board), *variables]]
    found += [(SCALER, trigger["query"]) for trigger in triggers]
    for place, query in [*found, *((RULES, rule["expr"]) for rule in _rules(project))]:
        line = f"{place}:{line_of(project[place], json.dumps(query)[1:-1])}"
        selectors = SELECTOR.findall(query)
        if not selectors:
            yield f"{line}: a query of nothing: {query}"
        known = [_printed().get(name) for name, _ in selectors]
        labels = OF_PROMETHEUS.union(*(each for each in known if each))
        for (name, matchers), own in zip(selectors, known, strict=True):
            if own is None:
                yield f"{line}: there is no metric {name}"
            elif wrong := {label for label, _ in MATCHER.findall(matchers)} - own - OF_PROMETHEUS:
                yield f"{line}: {name} has no label {', '.join(wrong)}"
        grouped = {label.strip() for group in GROUPED.findall(query) for label in group.split(",")}
        if wrong := grouped - labels:
            yield f"{line}: no metric of this query has the label {', '.join(wrong)}"


@check
def dashboard(project: Project) -> Iterator[str]:
    """The dashboard shows every series; panels have ids and titles, lie within the columns, and do not overlap."""
    board = json.loads(project[BOARD])
    shown = " ".join(_queries(board))
    missing = [name for name in SERIES if f"onejob_{name}" not in shown]
    yield from differences(f"{BOARD}:1", "series that are not shown", missing, NOT_SHOWN)
    names = [variable["name"] for variable in board["templating"]["list"]]
    yield from differences(f"{BOARD}:1", "variables", names, ["datasource", "namespace", "task"])
    panels = board["panels"]
    for panel in panels:
        line = f"{BOARD}:{line_of(project[BOARD], json.dumps(panel['title']))}: {panel['title'] or 'a panel'}"
        refs = [target["refId"] for target in panel.get("targets", ())]
        if not panel["title"] or [each["id"] for each in panels].count(panel["id"]) > 1 or len(refs) > len({*refs}):
            yield f"{line}: has no title, or not its own id, or two queries of one id"
        if panel["type"] != "row" and not (panel["description"] and panel["datasource"]["uid"] == "${datasource}"):
            yield f"{line}: has no description, or another source of data"
        if panel["gridPos"]["x"] < 0 or panel["gridPos"]["x"] + panel["gridPos"]["w"] > COLUMNS:
            yield f"{line}: is not within {COLUMNS} columns"
    for one, other in combinations(panels, 2):
        if _overlap(one["gridPos"], other["gridPos"]):
            yield f"{BOARD}:1: {one['title']} and {other['title']} overlap"


def _overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
    return not (beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"])


@check
def alerts(project: Project) -> Iterator[str]:
    """An alert has a severity, a summary, what it means for the guarantee, and a link to a heading on the site."""
    site: str = tomllib.loads(project["website/zensical.toml"])["project"]["site_url"]
    for rule in _rules(project):
        notes, line = rule["annotations"], f"{RULES}:{line_of(project[RULES], rule['alert'])}: {rule['alert']}"
        if rule["labels"]["severity"] not in {"warning", "critical"}:
            yield f"{line}: the severity is warning or critical"
        if len(notes["summary"]) <= 20 or len(notes["description"]) <= 80:
            yield f"{line}: say in the summary what is wrong, and in the description what it means"
        page, _, anchor = notes["runbook_url"].partition("#")
        text = project.files.get(f"docs/{page.removeprefix(site).replace('.html', '.md')}", "")
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        if anchor not in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}:
            yield f"{line}: there is no {notes['runbook_url']}"


@check
def prometheus(project: Project) -> Iterator[str]:
    """Prometheus, where there is promtool, accepts the rules and queries; the tests of the rules notice each alert."""
    if PROMTOOL is None:
        return
    rules = project[RULES]
    filled = [
        query.replace("$__rate_interval", "5m").replace("$__range", "6h")
        for query in _queries(json.loads(project[BOARD]))
    ]
    recorded = [{"record": f"r{number}", "expr": text} for number, text in enumerate(filled)]
    group = yaml.safe_dump({"groups": [{"name": "board", "rules": recorded}]})
    if told := _promtool(group, "check"):
        yield f"{BOARD}:1: {told}"
    for action in ("check", "test"):
        if told := _promtool(rules, action, project[RULE_TESTS]):
            yield f"{RULES}:1: {told}"
    for rule in _rules(project):
        without = rules.replace(f"alert: {rule['alert']}\n", "alert: Another\n")
        if not _promtool(without, "test", project[RULE_TESTS]):
            yield f"{RULE_TESTS}:1: nothing tests {rule['alert']}"


def _promtool(rules: str, action: str, tests: str = "") -> str:
    """Return what Prometheus's checker finds wrong with rules; nothing if it accepts them."""
    with TemporaryDirectory() as folder:
        file, test = Path(folder, "alerts.yaml"), Path(folder, "alerts.test.yaml")
        file.write_text(rules)
        test.write_text(tests)
        command = [str(PROMTOOL), action, "rules", str(file if action == "check" else test)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr).strip() if done.returncode else ""
