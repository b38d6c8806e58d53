"""A real API with a real document: OpenBao, imported as it describes itself and called through the gateway."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
import pytest_asyncio

from proofs.kit.openbao import OpenBaoServer
from tests.integration.conftest import ADMIN, HttpGateway, serve_gateway
from tests.support.openapi_service import make_service

pytestmark = [pytest.mark.requirement("EXE-1"), pytest.mark.nightly, pytest.mark.asyncio(loop_scope="session")]
OPERATIONS = ("kv-*", "seal-status", "mounts-list-secrets-engines")
SCOPES = ("bao:write", ADMIN)


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(fresh_database: str, tmp_path: Path) -> AsyncIterator[HttpGateway]:
    async with OpenBaoServer(tmp_path / "bao") as bao:
        document = tmp_path / "openbao.json"
        document.write_bytes(orjson.dumps(await bao.fetch_document()))
        service = make_service(
            document, name="bao", url=f"{bao.url}/v1", operations=OPERATIONS, writes=("kv-write-data-path",),
            secret="bao", security="bearer",
        )  # fmt: skip
        async with serve_gateway(
            fresh_database,
            tmp_path,
            change=lambda settings: settings.model_copy(update={"services": (service,)}),
            gateway_options={"tools": ()},
        ) as opened:
            token = opened.token(scopes=SCOPES)
            stored = await opened.post("/v1/secrets", {"name": "bao", "value": bao.root_token}, token=token)
            assert stored.status_code in (200, 201), stored.text
            yield opened


async def call(gateway: HttpGateway, tool: str, key: str | None = None, **arguments: Any) -> httpx2.Response:
    return await gateway.call(f"bao.{tool}", arguments, token=gateway.token(scopes=SCOPES), key=key)


async def test_what_is_written_through_the_gateway_is_read_through_it(gateway: HttpGateway) -> None:
    written = await call(gateway, "kv_write_data_path", "once", path="orders", body={"data": {"limit": 5}})
    assert written.status_code == 200, written.text
    again = await call(gateway, "kv_write_data_path", "once", path="orders", body={"data": {"limit": 5}})
    assert again.json()["call_id"] == written.json()["call_id"]
    read = await call(gateway, "kv_read_data_path", path="orders")
    found = read.json()["result"]["body"]["data"]
    # One version: the repeated call did not reach OpenBao.
    assert (found["data"], found["metadata"]["version"]) == ({"limit": 5}, 1)


async def test_a_refusal_of_the_service_is_a_typed_failure(gateway: HttpGateway) -> None:
    missing = await call(gateway, "kv_read_data_path", path="nothing")
    assert missing.status_code >= 400
    assert missing.json()["error"]["details"]["status"] == 404, missing.text
