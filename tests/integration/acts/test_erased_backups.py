"""A backup taken after an erasure holds nothing that leads to the person's values, and the whole log still verifies."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest.mock import patch

import asyncpg
import orjson
import pytest
import pytest_asyncio

from deputize.acts.erasure import continue_open_erasures
from deputize.core.canonical import canonicalize, compute_commitment
from deputize.operations.background import erasures
from deputize.store.local_postgres_host import ENVIRONMENT, choose_account, find_installation
from tests.integration.conftest import ADMIN, SCOPES, HttpGateway
from tests.support.gateway_internals import get_runtime
from tests.support.log_verdicts import verify_log, wait_for_signed_entries

pytestmark = pytest.mark.requirement("GOV-5", "GOV-6")
NAME = "wanda-leaver"
VALUE = "Wanda Q. Unrepeatable 8731"
EMAIL = "wanda.leaver@example.org"


@pytest.fixture(scope="module", autouse=True)
def _pause_background() -> Iterator[None]:
    """The test says when the erasure is continued."""
    with patch.object(erasures, "_INTERVAL_SECONDS", 3600.0):
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def db(gateway: HttpGateway) -> AsyncIterator[asyncpg.Connection]:
    assert gateway.settings.database.url is not None
    connection = await asyncpg.connect(gateway.settings.database.url.get_secret_value())
    yield connection
    await connection.close()


def _root(gateway: HttpGateway) -> str:
    return gateway.token("root", scopes=(*SCOPES, ADMIN))


async def _back_up(gateway: HttpGateway) -> bytes:
    """Back up the whole database, every schema of it, as an operator does."""
    assert gateway.settings.database.url is not None
    program = find_installation(choose_account()).path("pg_dump")
    command = [program, gateway.settings.database.url.get_secret_value()]
    return await asyncio.to_thread(
        lambda: subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True).stdout
    )


async def _make_call(gateway: HttpGateway) -> dict[str, Any]:
    answer = await gateway.call(
        "shop.rename_user",
        {"id": 1, "name": VALUE},
        token=gateway.token(NAME),
        key="wanda",
        session=f"chat of {NAME} <{EMAIL}>",
        native_call_id=f"{NAME}:1",
        flow_id=f"mail {EMAIL}",
    )
    assert answer.status_code == 200, answer.text
    call: dict[str, Any] = answer.json()
    return call


async def test_a_later_backup_leads_to_no_value_and_the_log_is_trusted(
    gateway: HttpGateway, db: asyncpg.Connection
) -> None:
    call_id = (await _make_call(gateway))["call_id"]
    entries = await db.fetch("select id, entry, salt from deputize.audit_entries where call_id = $1", call_id)
    ciphertexts = [
        row["ciphertext"] for row in await db.fetch("select * from deputize.sealed_payloads where id = $1", call_id)
    ]
    salts = [row["salt"] for row in entries if row["salt"] is not None]
    assert ciphertexts
    assert salts
    # While the salt exists, its owner can prove the value: nobody else can make this digest from another one.
    canonical = canonicalize({"id": 1, "name": VALUE})
    proven = [
        row for row in entries if row["salt"] and compute_commitment(row["salt"], canonical).encode() in row["entry"]
    ]
    assert proven
    before = await _back_up(gateway)
    for secret in (*salts, *ciphertexts, NAME.encode()):
        assert secret.hex().encode() in before or secret in before

    assert gateway.in_process is not None
    answer = await gateway.post("/v1/erasures", {"user": NAME}, token=_root(gateway))
    assert answer.status_code == 202, answer.text
    await continue_open_erasures(get_runtime(gateway.in_process), seconds=60, grace_seconds=0)
    after = await _back_up(gateway)

    for text in (NAME, EMAIL, VALUE):
        assert text.encode() not in after, text
        assert text.encode().hex().encode() not in after, text
    for secret in (*salts, *ciphertexts):
        assert secret.hex().encode() not in after
    # Every entry is in the backup as it was signed.
    for row in entries:
        assert row["entry"].hex().encode() in after
    size = await db.fetchval("select count(*) from deputize.audit_entries where tenant = 'dev'")
    await wait_for_signed_entries(gateway, _root(gateway), size)
    verdict = await verify_log(gateway, _root(gateway))
    assert verdict.is_trusted, verdict
    assert (verdict.expired_count, verdict.size >= size) == (0, True)
    facts = orjson.loads(proven[0]["entry"])
    assert (facts["native_call"], facts["flow"]) == ("[redacted]:1", "mail [email]")
