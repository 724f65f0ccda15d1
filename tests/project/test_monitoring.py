"""The dashboard and the alerts in `deploy/` are about metrics that exist, and each alert fires for its cause alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from onejob.api.prometheus import render_metrics
from onejob.ledger.ledger import Ledger
from onejob.observability.metrics import SERIES, Kind
from onejob.stores import open_store
from tests.project.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BOARD = ROOT / "deploy" / "grafana" / "onejob.json"
RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
PROMTOOL = shutil.which(os.environ.get("ONEJOB_TEST_PROMTOOL", "promtool"))
"""The checker of Prometheus: that on the PATH, or the one that the environment names."""
SELECTOR = re.compile(r"(onejob_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
GROUPED = re.compile(r"\bby \(([^)]*)\)")
OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds to whatever it scrapes."""


def board() -> Any:
    """Return the dashboard."""
    return json.loads(BOARD.read_text())


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    """Yield each query of the dashboard and of the rules."""
    for panel in board()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in board()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]
    yield from (rule["expr"] for rule in rules())


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return the names that `/metrics` prints, each with its labels, for a ledger in which everything was counted."""
    directory = tmp_path_factory.mktemp("metrics")
    ledger = Ledger(open_store(f"sqlite:///{directory / 'ledger.db'}"))
    for name, series in SERIES.items():
        if series.kind is not Kind.GAUGE:
            bucket = ["+Inf"] if series.kind is Kind.HISTOGRAM else []
            ledger.increment({json.dumps([name, *("x" for _ in series.labels), *bucket]): 1.0})
    families = text_string_to_metric_families(render_metrics(ledger).decode())
    ledger.close()
    return {sample.name: {*sample.labels} for family in families for sample in family.samples}


def test_queries_name_what_is_printed(printed: dict[str, set[str]]) -> None:
    """Each metric in a query is one that `/metrics` prints, and each label in a query is one of its labels."""
    found = list(expressions())
    assert len(found) > 40
    for expression in found:
        selectors = SELECTOR.findall(expression)
        assert selectors, expression
        labels = OF_PROMETHEUS.copy()
        for name, matchers in selectors:
            assert name in printed, expression
            assert {label for label, _ in MATCHER.findall(matchers)} <= printed[name] | OF_PROMETHEUS, expression
            labels |= printed[name]
        for group in GROUPED.findall(expression):
            assert {label.strip() for label in group.split(",")} <= labels, expression


def test_all_metrics_are_watched() -> None:
    """The dashboard shows every series, but for the number of started runs, which is that of the ended ones."""
    shown = " ".join(target["expr"] for panel in board()["panels"] for target in panel.get("targets", ()))
    assert [name for name in SERIES if f"onejob_{name}" not in shown] == ["claims_total"]


def test_the_dashboard_is_well_formed() -> None:
    """Panels have ids and titles of their own, lie within the 24 columns of a dashboard, and do not overlap."""
    panels = board()["panels"]
    assert board()["schemaVersion"] >= 36
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in places)
    assert not [(a, b) for a, b in combinations(places, 2) if _overlap(a, b)]
    for panel in panels:
        assert panel["title"]
        assert panel["type"] == "row" or (panel["description"] and panel["datasource"]["uid"] == "${datasource}")
        refs = [target["refId"] for target in panel.get("targets", ())]
        assert len(refs) == len({*refs})
    assert [variable["name"] for variable in board()["templating"]["list"]] == ["datasource", "namespace", "task"]


def _overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
    return not (beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"])


def test_each_alert_says_what_to_do() -> None:
    """An alert has a severity, a summary, what it means for the guarantee, and a link to a heading that exists."""
    for rule in rules():
        notes = rule["annotations"]
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert len(notes["summary"]) > 20
        assert len(notes["description"]) > 80
        page, _, anchor = notes["runbook_url"].partition("#")
        text = (ROOT / page.partition("/blob/main/")[2]).read_text()
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Prometheus's checker."""
    return subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, which comes with Prometheus")
def test_prometheus_accepts_the_rules() -> None:
    """Prometheus accepts the rules, and each one fires for the cause that its test describes."""
    checked, tested = promtool("check", "rules", RULES), promtool("test", "rules", RULES.with_name("alerts.test.yaml"))
    assert (checked.returncode, tested.returncode) == (0, 0), checked.stderr + tested.stdout + tested.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, which comes with Prometheus")
@pytest.mark.parametrize("name", [rule["alert"] for rule in rules()])
def test_each_alert_is_tested(name: str, tmp_path: Path) -> None:
    """The tests of the rules fail without any one of the alerts."""
    shutil.copy(RULES.with_name("alerts.test.yaml"), tmp_path)
    (tmp_path / "alerts.yaml").write_text(RULES.read_text().replace(f"alert: {name}\n", "alert: Another\n"))
    assert promtool("test", "rules", tmp_path / "alerts.test.yaml").returncode == 1


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, which comes with Prometheus")
def test_prometheus_parses_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    """Each query of the dashboard is valid PromQL."""
    found = [target["expr"] for panel in board()["panels"] for target in panel.get("targets", ())]
    filled = [text.replace("$__rate_interval", "5m").replace("$__range", "6h") for text in found]
    recorded = [{"record": f"r{number}", "expr": text} for number, text in enumerate(filled)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": recorded}]}))
    checked = promtool("check", "rules", tmp_path / "rules.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
