"""That what is written about metrics, and the Grafana file that draws them, agree with what /metrics tells."""

import json
import re
from math import inf
from pathlib import Path

import pytest
import yaml  # which transformers brings

from scheduler.wait_estimate.by_arrival import ArrivalComparison
from tests.server.counted import counted

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
MONITORING = ROOT / "server/deploy/monitoring"
METRIC = re.compile(r"`((?:vllm|lengthwise):\w+)`(?: by ((?:`\w+`(?:, )?)+))?")


@pytest.fixture
async def told() -> dict[str, tuple[str, set[str]]]:
    """Type and own labels of each metric, by name."""
    server = await counted()
    server.dispatcher.waits._by_arrival = inf, ArrivalComparison(40, 30, 5.5, 5.0, 0.29, 0.56, 3.0)
    families = [one for one in server.metrics.registry.collect() if not one.name.startswith("process_")]
    labels = {one.name: {label for sample in one.samples for label in sample.labels} for one in families}
    return {one.name: (one.type, labels[one.name] - {"model_name", "le"}) for one in families}


async def test_each_metric_is_listed_with_its_labels(told: dict[str, tuple[str, set[str]]]) -> None:
    table = (DOCS / "observability.md").read_text("utf-8").partition("| about |")[2].partition("\n\n")[0]
    written = {name: {*re.findall(r"\w+", labels)} for name, labels in METRIC.findall(table)}
    assert written.keys() == told.keys()
    assert [name for name, (_, labels) in told.items() if labels and labels != written[name]] == []


async def test_the_process_is_explained() -> None:
    text = (DOCS / "observability.md").read_text("utf-8")
    families = {family.name for family in (await counted()).metrics.registry.collect()}
    own = {name for name in families if name.startswith("process_")}
    assert len(own) == 6
    assert {re.sub("_total$", "", name) for name in re.findall(r"`(process_\w+)`", text)} == own


def sampled(told: dict[str, tuple[str, set[str]]]) -> set[str]:
    """Names that an expression can ask for."""
    kinds = {name: kind for name, (kind, _) in told.items()}
    known = {f"{name}_total" if kind == "counter" else name for name, kind in kinds.items() if kind != "histogram"}
    suffixes = ("bucket", "sum", "count")
    known |= {f"{name}_{suffix}" for name, kind in kinds.items() if kind == "histogram" for suffix in suffixes}
    return known


async def test_the_grafana_dashboard_draws_metrics_that_exist(told: dict[str, tuple[str, set[str]]]) -> None:
    found = re.findall(r"(?:vllm|lengthwise):\w+", (MONITORING / "lengthwise.json").read_text("utf-8"))
    assert len(found) > 50 and set(found) - sampled(told) == set()


async def test_alerts_ask_for_metrics_that_exist_and_say_what_to_do(told: dict[str, tuple[str, set[str]]]) -> None:
    (group,) = yaml.safe_load((MONITORING / "alerts.yml").read_text("utf-8"))["groups"]
    rules, known = group["rules"], re.compile(r"(?:(?:vllm|lengthwise):|\bup\b)\w*")
    names = [name for rule in rules for name in known.findall(rule["expr"])]
    assert len(names) == len(rules) and set(names) - sampled(told) == {"up"}
    assert {rule["labels"]["severity"] for rule in rules} == {"critical", "warning"}
    assert all(rule["annotations"].keys() == {"summary", "remedy"} for rule in rules)


def test_the_grafana_dashboard_has_panels_that_do_not_overlap() -> None:
    panels = json.loads((MONITORING / "lengthwise.json").read_text("utf-8"))["panels"]
    places = [panel["gridPos"] for panel in panels]
    cells = [(one["x"] + x, one["y"] + y) for one in places for x in range(one["w"]) for y in range(one["h"])]
    assert len(set(cells)) == len(cells)
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {panel["type"] for panel in panels} == {"row", "timeseries", "stat", "heatmap"}
