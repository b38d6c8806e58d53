"""An HTTP tool written by hand, called through the gateway."""

from pathlib import Path

import pytest

from tests.integration.conftest import ADMIN
from tests.integration.operations.servers.test_services import SECRET, open_services
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
