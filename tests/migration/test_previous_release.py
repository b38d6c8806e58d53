"""The release before serves beside this one, and after it: a rollback is the older program on the newer schema."""

from functools import partial
from pathlib import Path

import pytest

from proofs.kit.gateway import GatewayHandle, create_issuer, start_gateway
from proofs.kit.helper_servers import start_ledger
from proofs.kit.http_client import HttpConnection
from proofs.kit.previous_release import NoHistoryError, extract_previous_release
from proofs.kit.sandbox import Sandbox
from proofs.kit.write_load import Load, run_load, send_write
from tests.support.gateway_lab import wait_until


@pytest.fixture
def previous_env(tmp_path: Path) -> dict[str, str]:
    try:
        return extract_previous_release(tmp_path)
    except NoHistoryError as error:
        pytest.skip(str(error))


@pytest.mark.nightly
@pytest.mark.requirement("EXE-6")
async def test_the_release_before_serves_beside_this_one_and_after_it(
    previous_env: dict[str, str],
) -> None:
    async with Sandbox() as sandbox:
        postgres, issuer, ledger = await sandbox.start_postgres(), create_issuer(), await start_ledger(sandbox)
        token = issuer.issue_token("writer", minutes=60)
        env = {"PROOF_LEDGER": ledger.url}
        # The schema is this release's: preparing a gateway migrates it.
        new = await start_gateway(sandbox, postgres.dsn, issuer, name="new", tools="effects.py", env=env)
        old = await start_gateway(sandbox, postgres.dsn, issuer, name="old", tools="effects.py", env=env | previous_env)
        assert [await _has_route(each, token, "/v1/activity") for each in (new, old)] == [True, False]
        async with run_load([new.url, old.url], token, name="both", callers=4) as load:
            await wait_until(partial(_has, load, 60))
        # Either answers for what the other did, and does nothing again.
        for gateway in (new, old):
            assert {await _repeat(gateway, token, key) for key in load.acknowledged[-20:]} == {200}
        await new.child.stop()
        async with run_load([old.url], token, name="after", callers=2) as after:
            await wait_until(partial(_has, after, 20))
        effects = await ledger.list_effects()
    assert (dict(load.failures), dict(after.failures)) == ({}, {})
    keys = load.acknowledged + after.acknowledged
    assert sorted(each.call for each in effects) == sorted(keys)


async def _has(load: Load, count: int) -> bool:
    return len(load.acknowledged) >= count


async def _has_route(gateway: GatewayHandle, token: str, path: str) -> bool:
    http = HttpConnection.for_url(gateway.url, token=token)
    answer = await http.get(path)
    http.close()
    return answer.status != 404


async def _repeat(gateway: GatewayHandle, token: str, key: str) -> int:
    http = HttpConnection.for_url(gateway.url, token=token)
    answer = await send_write(http, key)
    http.close()
    return answer.status
