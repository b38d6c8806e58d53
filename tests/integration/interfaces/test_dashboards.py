"""Every query of the Grafana dashboards is answered by a real Prometheus that scrapes a real gateway."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from deputize.core.telemetry import Metric
from tests.integration.conftest import HttpGateway
from tests.support.prometheus_server import run_prometheus

pytestmark = pytest.mark.requirement("OBS-2", "OBS-3")
_DEPLOY = Path(__file__).parents[3] / "deploy"
_DASHBOARDS = sorted((_DEPLOY / "grafana").glob("*.json"))
# What this test causes nothing of: no check fails, no one approves, no limit refuses, no two sources are compared,
# nothing looks like an attack, no tool declares thresholds, and events are sent nowhere.
_QUIET_PANELS = {
    "Circuits of services", "Retries that were refused", "Calls to services", "Calls that busy services refused",
    "Failing checks", "Pending approvals", "Time to a decision", "Notifications to approvers", "Refused by limits",
    "Refused connections", "Disagreements between sources", "Lag of event sinks", "Events sent",
    "Suspected injections", "Thresholds of alerts", "Checkpoints that wait for witnesses",
    "Failed requests for cosignatures",
}  # fmt: skip
_METRIC = re.compile(r"\bdeputize_[a-z_]+")


def _list_queries() -> Iterator[tuple[str, str]]:
    """List the queries with the titles of their panels, for all tools."""
    for file in _DASHBOARDS:
        for panel in json.loads(file.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                yield panel["title"], target["expr"].replace("$tool", ".*")


def test_every_metric_of_the_dashboards_exists_and_every_metric_is_shown() -> None:
    names = {name for _, query in _list_queries() for name in _METRIC.findall(query)}
    assert {Metric(re.sub(r"_(bucket|sum|count)$", "", name)) for name in names} == set(Metric)


def test_panels_have_titles_of_their_own_and_do_not_overlap() -> None:
    for file in _DASHBOARDS:
        cells: set[tuple[int, int]] = set()
        panels = json.loads(file.read_text(encoding="utf-8"))["panels"]
        assert len({panel["title"] for panel in panels}) == len({panel["id"] for panel in panels}) == len(panels)
        for panel in panels:
            place = panel["gridPos"]
            own_cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & own_cells, panel["title"]
            assert max(x for x, _ in own_cells) < 24
            cells |= own_cells


async def _query(http: httpx2.AsyncClient, query: str) -> list[Any]:
    answer = await http.get("/api/v1/query", params={"query": query})
    assert answer.status_code == 200, f"{query}: {answer.text}"
    samples: list[Any] = answer.json()["data"]["result"]
    return samples


async def _make_calls(gateway: HttpGateway, round_number: int) -> None:
    await gateway.call("shop.get_user", {"id": 1})
    await gateway.call("shop.get_user", {"id": "x"})
    await gateway.call("shop.fail", {"slug": "tool-failed"})
    await gateway.call("shop.rename_user", {"id": 7, "name": "Ana"}, key=f"rename-{round_number // 2}")
    await gateway.call("shop.delete_user", {"id": 7}, dry_run=True)


async def _is_answered(http: httpx2.AsyncClient, query: str) -> bool:
    try:
        return bool(await _query(http, query))
    except httpx2.TransportError:
        return False


@pytest.mark.nightly
async def test_prometheus_answers_every_panel(gateway: HttpGateway, tmp_path: Path) -> None:
    target = gateway.metrics_url.removeprefix("http://")
    rules = _DEPLOY / "prometheus" / "deputize-rules.yml"
    with run_prometheus(tmp_path, target, rules) as url:
        async with httpx2.AsyncClient(base_url=url, timeout=60) as http, asyncio.timeout(300):
            open_queries = [*_list_queries()]
            expected_queries = {query for title, query in open_queries if title not in _QUIET_PANELS}
            expected_queries |= {"deputize:tool_health:15m", 'up{job="deputize"} == 1'}
            round_number = 0
            while expected_queries:
                await _make_calls(gateway, round_number)
                round_number += 1
                expected_queries = {each for each in expected_queries if not await _is_answered(http, each)}
                await asyncio.sleep(0.5)
            for _, query in open_queries:
                await _query(http, query)
            [sample] = await _query(http, 'deputize:tool_health:15m{tool="shop.fail"}')
            assert float(sample["value"][1]) <= 0.5
            assert await _query(http, 'ALERTS{alertname="DeputizeDown"}') == []
            refused = await http.get("/api/v1/query", params={"query": "sum by (tool ("})
            assert refused.status_code == 400
