"""A gateway with consistency rules, shared by the tests of one module."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from deputize.core.settings import ApprovalSettings, ToolSettings, WebhookSettings
from tests.integration.conftest import HttpGateway
from tests.integration.lifecycle.consistency.sources import RULES, open_sources
from tests.support.webhook_receiver import WebhookReceiver, open_webhook_receiver


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with open_webhook_receiver() as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sources")


@pytest.fixture(scope="module")
def changes(receiver: WebhookReceiver) -> dict[str, Any]:
    notify = [{"group": "owners/crm", "url": receiver.url}]
    return {
        "consistency": RULES,
        "tools": ToolSettings(shared_with=("other",)),
        "approvals": ApprovalSettings.model_validate({"notify": notify}),
        "webhooks": WebhookSettings(hosts=("127.0.0.1",)),
    }


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(module_database: str, folder: Path, changes: dict[str, Any]) -> AsyncIterator[HttpGateway]:
    async with open_sources(module_database, folder, changes) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def db(gateway: HttpGateway) -> AsyncIterator[asyncpg.Connection]:
    assert gateway.settings.database.url is not None
    connection = await asyncpg.connect(gateway.settings.database.url.get_secret_value())
    yield connection
    await connection.close()
