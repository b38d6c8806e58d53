"""A dry run is the same through every interface: asked for by one word, answered with what would be, and nothing
done.
"""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import jsonschema_rs
import jwt
import pytest
from pydantic import Field

from deputize import Client, Preview, SyncClient, ToolContext, tool
from deputize.catalog.importers.python import ATTRIBUTE
from tests.integration.conftest import HttpGateway, serve_gateway
from tests.support import shop_tools

pytestmark = pytest.mark.requirement("GOV-4")

DELETE_PREVIEW = {"resource": "shop.users", "op": "delete", "scope": "7", "count": 1}


async def test_rest_json_rpc_and_the_client_say_the_same(gateway: HttpGateway) -> None:
    before = list(shop_tools.effects)
    rest = await gateway.call("shop.delete_user", {"id": 7}, dry_run=True)
    assert rest.status_code == 200
    rpc = await gateway.call_rpc("calls.create", {"tool": "shop.delete_user", "arguments": {"id": 7}, "dry_run": True})
    async with Client(gateway.url, gateway.token()) as d:
        reply = await d.call("shop.delete_user", id=7, dry_run=True)
    assert (reply.ok, reply.pending, reply.result) == (True, False, None)
    own = {"call_id", "trace_id", "created_at", "preview"}
    told = [rest.json(), rpc["result"], reply.envelope]
    assert all({**each, **dict.fromkeys(own)} == {**told[0], **dict.fromkeys(own)} for each in told)
    for each in told:
        assert (each["dry_run"], each["state"], each["preview"]["changes"][0]) == (True, "succeeded", DELETE_PREVIEW)
    assert reply.preview is not None
    assert reply.preview["impact"] == {"by_cascade": 14}
    assert shop_tools.effects == before


async def test_the_sync_client_supports_dry_runs(gateway: HttpGateway) -> None:
    def run_sync_client() -> Any:
        with SyncClient(gateway.url, gateway.token()) as d:
            return d.call("shop.delete_user", id=7, dry_run=True)

    assert (await asyncio.to_thread(run_sync_client)).preview["by"] == "tool"


async def test_it_answers_as_documented_and_is_found_again_as_what_it_was(gateway: HttpGateway) -> None:
    document = (await gateway.http.get("/openapi.json")).json()
    answer = await gateway.call("shop.delete_user", {"id": 7}, dry_run=True)
    schema = {"$ref": "#/components/schemas/DryRunModel", "components": document["components"]}
    jsonschema_rs.validator_for(schema).validate(answer.json())
    documented = document["paths"]["/v1/calls"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema_rs.validator_for({**documented, "components": document["components"]}).validate(answer.json())
    known = (await gateway.get(answer.headers["location"])).json()
    assert (known["kind"], known["detail"].startswith("a dry run")) == ("read", True)
    assert (await gateway.call("shop.delete_user", {"id": 7}, dry_run="yes")).status_code == 400
    metrics = (await gateway.http.get(f"{gateway.metrics_url}/metrics")).text
    assert 'deputize_tool_dry_runs_total{tool="shop.delete_user"}' in metrics


async def test_another_tenant_sees_nothing_of_it(gateway: HttpGateway) -> None:
    answer = await gateway.call("shop.delete_user", {"id": 7}, dry_run=True)
    for token in (gateway.other_token(), gateway.token("somebody-else")):
        assert (await gateway.get(answer.headers["location"], token=token)).status_code == 404


tokens: list[tuple[str, str]] = []


async def _preview_close(id: int, context: ToolContext) -> Preview:
    tokens.append(("preview", "" if context.credential is None else context.credential.reveal()))
    return Preview(impact={"id": id})


def _make_close_tool(name: str, *scopes: str) -> Any:
    @tool(
        effects="destructive", namespace="bank", name=name, resources=["delete bank.accounts/{id}"], scopes=scopes,
        credential="delegated", audience="https://bank.example", preview=_preview_close,
    )  # fmt: skip
    async def close(
        id: Annotated[int, Field(description="Which account", examples=[7])], context: ToolContext
    ) -> dict[str, int]:
        """Close an account for good."""
        tokens.append(("effect", "" if context.credential is None else context.credential.reveal()))
        return {"closed": id}

    return getattr(close, ATTRIBUTE)


@pytest.mark.requirement("GOV-1")
async def test_a_token_minted_for_a_preview_has_read_scopes_only(fresh_database: str, tmp_path: Path) -> None:
    made = [_make_close_tool("close", "bank:read", "bank:write"), _make_close_tool("slam", "bank:write")]
    async with serve_gateway(fresh_database, tmp_path, gateway_options={"tools": made}) as bank:
        token = bank.token(scopes=("bank:read", "bank:write"))
        for name in ("bank.close", "bank.slam"):
            assert (await bank.call(name, {"id": 7}, token=token, dry_run=True)).json()["preview"]["by"] == "tool"
            assert (await bank.call(name, {"id": 7}, token=token, key=name)).status_code == 200
    scopes = [
        (who, jwt.decode(each, options={"verify_signature": False})["scope"] if each else None) for who, each in tokens
    ]
    assert scopes == [
        ("preview", "bank:read"), ("effect", "bank:read bank:write"), ("preview", None), ("effect", "bank:write"),
    ]  # fmt: skip
