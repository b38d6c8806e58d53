"""Policies that need two operators, over REST and on the command line."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from deputize.core.settings import Settings
from tests.integration.conftest import ADMIN, HttpGateway, serve_gateway
from tests.integration.interfaces.rest.test_openapi import OpenApiChecker

pytestmark = pytest.mark.requirement("GOV-2")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def two_gateway(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpGateway]:
    def change(settings: Settings) -> Settings:
        return settings.model_copy(update={"policy": settings.policy.model_copy(update={"approvals": 2})})

    async with serve_gateway(module_database, tmp_path_factory.mktemp("two"), change=change) as opened:
        yield opened


def make_body(name: str) -> dict[str, Any]:
    text = f'@id("{name}")\npermit (principal, action, resource);\n'
    return {"files": [{"path": f"{name}.cedar", "text": text}]}


async def put_policies(gateway: HttpGateway, name: str, *, by: str) -> httpx2.Response:
    headers = {"authorization": f"Bearer {gateway.token(by, scopes=[ADMIN])}"}
    return await gateway.http.put("/v1/policies", json=make_body(name), headers=headers)


async def run_cli(gateway: HttpGateway, *words: str, by: str) -> tuple[int, str]:
    token = gateway.token(by, scopes=[ADMIN])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "deputize", "policy", *words, "--url", gateway.url, "--token", token,
        cwd=gateway.folder, env={**os.environ, "NO_COLOR": "1"}, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_a_proposal_is_answered_as_documented(two_gateway: HttpGateway) -> None:
    checker = OpenApiChecker(two_gateway, (await two_gateway.http.get("/openapi.json")).json())
    for by, status, state in (("ana", 202, "proposed"), ("bo", 200, "active")):
        answer = await put_policies(two_gateway, "documented", by=by)
        assert (answer.status_code, answer.json()["state"]) == (status, state), answer.text
        checker.check_response("put", "/v1/policies", answer)
        shown = await two_gateway.get("/v1/policies", token=two_gateway.token("root", scopes=[ADMIN]))
        assert len(shown.json()["proposals"]) == (1 if state == "proposed" else 0)
        checker.check_response("get", "/v1/policies", shown)
    again = await put_policies(two_gateway, "documented", by="ana")
    assert (again.status_code, again.json()["changed"]) == (200, False)


async def test_an_operator_reads_the_difference_and_confirms_it(two_gateway: HttpGateway) -> None:
    assert (await put_policies(two_gateway, "before", by="ana")).status_code == 202
    assert (await put_policies(two_gateway, "before", by="bo")).status_code == 200
    (two_gateway.folder / "after.cedar").write_text(make_body("after")["files"][0]["text"])
    code, said = await run_cli(two_gateway, "put", "after.cedar", by="ana")
    assert (code, "The active policies did not change" in said) == (0, True), said
    digest = said.split("deputize policy confirm ")[1].split()[0]
    assert digest in (await run_cli(two_gateway, "confirm", by="bo"))[1]
    code, said = await run_cli(two_gateway, "confirm", digest, by="ana")
    assert (code, "another operator must confirm" in said) == (1, True), said
    code, said = await run_cli(two_gateway, "confirm", digest[:12], by="bo")
    assert (code, "name the whole digest" in said) == (2, True), said
    code, said = await run_cli(two_gateway, "confirm", digest, by="bo")
    assert (code, "Active since policy epoch" in said) == (0, True), said
    assert '+@id("after")' in said
    assert '-@id("before")' in said
    assert "No proposals." in (await run_cli(two_gateway, "confirm", by="bo"))[1]
