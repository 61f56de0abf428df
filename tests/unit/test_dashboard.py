"""The dashboard for Grafana in `docs/deploy` fits its schema, and asks for metrics that a driver
reports."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator

import promql_parser
import pytest
from prometheus_client.metrics_core import Metric
from promql_parser import AggModifierType, AggregateExpr, Call, Expr, VectorSelector

from meander.app.status.metrics import MetricsCollector
from tests.support.deploy.manifests import (
    DEPLOY,
    Object,
    faults_of_dashboard,
)
from tests.support.doc_blocks import ROOT

DASHBOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text())


def collected() -> dict[str, Metric]:
    return {
        one.name + ("_total" if one.type == "counter" else ""): one
        for one in MetricsCollector("counts").collect()
    }


def listed() -> set[str]:
    """Return the metrics of the reference page."""
    rows = re.findall(
        r"^\| `(meander_\w+)` \|", (ROOT / "docs/reference/metrics.md").read_text(), re.MULTILINE
    )
    return {*rows}


METRICS = collected()


def panels(of: Object) -> Iterator[Object]:
    """Yield all panels of a dashboard, those of rows included."""
    for panel in of["panels"]:
        yield panel
        yield from panel.get("panels", [])


def queries(dashboard: Object) -> list[str]:
    """Return the queries of a dashboard, with values in place of its variables."""
    found = [
        target["expr"] for panel in panels(dashboard) for target in panel.get("targets", [])
    ] + [one["expr"] for one in dashboard["annotations"]["list"]]
    return [one.replace("$__rate_interval", "5m").replace("$flow", "counts") for one in found]


def metric_of(name: str) -> tuple[str, str]:
    """Return the name and the suffix of a metric in a query.

    >>> metric_of("meander_delivery_seconds_bucket"), metric_of("meander_restarts_total")
    (('meander_delivery_seconds', '_bucket'), ('meander_restarts_total', ''))
    """
    found = re.fullmatch(r"(.*?)(_bucket|_sum|_count)?", name)
    assert found is not None
    return found[1], found[2] or ""


def faults_of_query(query: str) -> list[str]:
    """Return what a query asks for that no driver reports."""
    found = list[str]()

    def visit(at: Expr, of_rate: bool = False) -> None:
        match at:
            case VectorSelector():
                found.extend(_faults_of_selector(at, of_rate=of_rate))
            case AggregateExpr():
                if at.modifier is not None:
                    assert at.modifier.type == AggModifierType.By
                    known = set().union(*map(_labels, _selectors(at.expr)))
                    found.extend(f"no label {one}" for one in {*at.modifier.labels} - known)
                visit(at.expr)
            case Call():
                for one in at.args:
                    visit(one, at.func.name in {"rate", "increase", "changes"})
            case promql_parser.MatrixSelector():
                visit(at.vector_selector, of_rate)
            case promql_parser.BinaryExpr():
                visit(at.lhs)
                visit(at.rhs)
            case promql_parser.NumberLiteral():
                pass
            case _:
                raise AssertionError(f"no rule for {at}")

    visit(promql_parser.parse(query))
    return found


def _selectors(at: Expr) -> list[VectorSelector]:
    found = list[VectorSelector]()

    def note(one: Expr) -> None:
        if isinstance(one, promql_parser.MatrixSelector):
            one = one.vector_selector
        if isinstance(one, VectorSelector) and one not in found:
            found.append(one)

    promql_parser.walk(at, note)
    return found


def _labels(at: VectorSelector) -> set[str]:
    """Return the labels of a metric that a driver reports; of an unknown one, none."""
    name, suffix = metric_of(at.name or "")
    if name not in METRICS:
        return set()
    labels = {*vars(METRICS[name]).get("_labelnames", ()), "flow"}
    return labels | {"le"} if suffix == "_bucket" else labels


def _faults_of_selector(at: VectorSelector, *, of_rate: bool) -> list[str]:
    name, suffix = metric_of(at.name or "")
    if name not in METRICS or name not in listed():
        return [f"no metric {at.name}"]
    kind = METRICS[name].type
    matchers = {one.name for one in at.matchers.matchers}
    found = [f"no label {one} of {name}" for one in matchers - _labels(at)]
    found += [f"{name} of all flows"] * ("flow" not in matchers)
    found += [f"{name} is no histogram"] * ((kind == "histogram") != bool(suffix))
    return found + [f"a rate of {name}"] * ((kind != "gauge") != of_rate)


def test_the_dashboard_is_one_of_grafana() -> None:
    assert faults_of_dashboard(DASHBOARD) == []


def test_a_wrong_dashboard_is_found() -> None:
    wrong = copy.deepcopy(DASHBOARD)
    first, second, *_ = [panel for panel in wrong["panels"] if panel["type"] == "stat"]
    first["options"]["colourMode"] = "value"
    second["targets"][0]["expression"] = second["targets"][0].pop("expr")
    wrong["templating"]["list"][0]["type"] = "source"
    assert len(faults_of_dashboard(wrong)) == 4


@pytest.mark.parametrize("query", queries(DASHBOARD))
def test_a_query_of_the_dashboard_asks_for_what_a_driver_reports(query: str) -> None:
    assert faults_of_query(query) == []


FLOW = 'flow=~"counts"'


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        (f"sum(meander_worker{{{FLOW}}})", "no metric meander_worker"),
        (f"sum by (topics) (meander_lag_records{{{FLOW}}})", "no label topics"),
        (f"sum(meander_lag_records{{{FLOW}, worker='1'}})", "no label worker of meander_lag_rec"),
        ("sum(meander_lag_records)", "meander_lag_records of all flows"),
        (f"sum(meander_restarts_total{{{FLOW}}})", "a rate of meander_restarts_total"),
        (f"sum(rate(meander_lag_records{{{FLOW}}}[5m]))", "a rate of meander_lag_records"),
        (f"rate(meander_delivery_seconds{{{FLOW}}}[5m])", "meander_delivery_seconds is no hist"),
        (f"rate(meander_restarts_total_bucket{{{FLOW}}}[5m])", "meander_restarts_total is no his"),
    ],
)
def test_a_wrong_query_is_found(query: str, fault: str) -> None:
    (found,) = faults_of_query(query)
    assert found.startswith(fault)


def test_a_query_with_a_fault_of_syntax_is_found() -> None:
    with pytest.raises(ValueError, match="unexpected|unclosed|invalid"):
        faults_of_query("sum(meander_workers")


def test_the_dashboard_shows_each_metric_that_deserves_an_alert() -> None:
    text = (ROOT / "docs/operations.md").read_text()
    alerts = {metric_of(name)[0] for name in re.findall(r"\bmeander_\w+", text)}
    used = {
        metric_of(at.name or "")[0]
        for query in queries(DASHBOARD)
        for at in _selectors(promql_parser.parse(query))
    }
    assert len(alerts) > 10
    assert alerts <= used


def test_panels_have_numbers_and_places_of_their_own() -> None:
    found = [*panels(DASHBOARD)]
    assert len({panel["id"] for panel in found}) == len(found)
    taken = list[tuple[int, int]]()
    for place in (panel["gridPos"] for panel in found):
        across = range(place["x"], place["x"] + place["w"])
        down = range(place["y"], place["y"] + place["h"])
        assert across.stop <= 24
        taken += [(x, y) for x in across for y in down]
    assert len(taken) == len(set(taken))


def test_the_dashboard_defines_the_variables_that_it_uses() -> None:
    defined = {one["name"] for one in DASHBOARD["templating"]["list"]}
    used = {*re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))} - {"__rate_interval", "__all"}
    assert used == defined == {"datasource", "flow"}
    choices = DASHBOARD["templating"]["list"][1]["query"]
    metric, label = re.findall(r"label_values\((\w+), (\w+)\)", choices)[0]
    assert metric in METRICS and label == "flow"
