"""An HTTP tool written by hand, called through the gateway."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.integration.conftest import ADMIN
from tests.integration.operations.servers.test_services import SECRET, open_services
from tests.support.gateway_internals import get_runtime
from tests.support.http_manifest import MANIFEST, make_manifest_service
from tests.support.openapi_service import open_service

pytestmark = [pytest.mark.requirement("EXE-1"), pytest.mark.asyncio(loop_scope="session")]
TOOL = "weather.forecast"


async def test_a_hand_written_tool_is_called_and_gets_a_new_version(fresh_database: str, tmp_path: Path) -> None:
    file = tmp_path / "weather.yaml"
    file.write_text(MANIFEST)
    async with open_service() as service:
        credential = {"credential": "vault", "secret": "orders", "security": "X-Api-Key"}
        settings = make_manifest_service(file, url=service.url, **credential)
        async with open_services(fresh_database, tmp_path, settings) as gateway:
            token = gateway.token("root", scopes=(ADMIN,))
            service.answer(200, {"sky": "blue"})
            answer = await gateway.call(TOOL, {"city": "Rio Claro", "days": 2}, token=token)
            assert answer.json()["result"] == {"status": 200, "body": {"sky": "blue"}}, answer.text
            sent = service.requests[-1]
            assert (sent.method, sent.path) == ("GET", "/v1/cities/Rio%20Claro/forecast?days=2")
            assert sent.headers["x-api-key"] == SECRET
            refused = await gateway.call(TOOL, {"city": "Rio", "days": 9}, token=token)
            assert refused.json()["error"]["slug"] == "schema-violation", refused.text
        file.write_text(MANIFEST.replace("maximum: 7", "maximum: 10"))
        settings = make_manifest_service(file, url=service.url, **credential)
        async with open_services(fresh_database, tmp_path, settings) as gateway:
            token = gateway.token("root", scopes=(ADMIN,))
            assert (await gateway.call(TOOL, {"city": "Rio", "days": 9}, token=token)).status_code == 200
            versions = (await gateway.get(f"/v1/tools/{TOOL}/versions", token=token)).json()["versions"]
            assert [each["version"] for each in versions] == ["2.0.0", "1.0.0"]


async def test_a_tool_may_name_one_that_stands_after_it_and_all_appear_at_once(
    fresh_database: str, tmp_path: Path
) -> None:
    def make_tool(name: str, **fields: Any) -> dict[str, Any]:
        properties = {"city": {"type": "string", "description": "Where.", "examples": ["Rio"]}}
        return {
            "name": f"weather.{name}", "http": f"GET /{name}/{{city}}", "description": f"Read the {name} of a city.",
            "input_schema": {"type": "object", "additionalProperties": False, "properties": properties,
                             "required": ["city"]},
            **fields,
        }  # fmt: skip

    file = tmp_path / "weather.json"
    file.write_bytes(orjson.dumps({"tools": [make_tool("now", fallback=["weather.climate"]), make_tool("climate")]}))
    async with open_service() as service:
        settings = make_manifest_service(file, url=service.url)
        async with open_services(fresh_database, tmp_path, settings) as gateway:
            assert gateway.in_process is not None
            assert gateway.in_process.startup_problems == []
            tools = (await get_runtime(gateway.in_process).authority.load_tenant("dev")).tools.tools
            epochs = [tools[f"weather.{name}"].versions[0].changed_epoch for name in ("now", "climate")]
            assert epochs[0] == epochs[1]
