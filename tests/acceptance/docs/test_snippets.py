"""Whoever types what the documentation says sees what it promises."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from deputize.store.local import LocalPostgres
from proofs.kit.idp.install import NODE, install
from proofs.kit.world import World
from tests.acceptance.cli.shell import deputize
from tests.acceptance.docs.pages import Page, Reader, pages


@pytest.fixture
def desk() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="deputize-docs-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database(postgres: LocalPostgres) -> Iterator[str]:
    name = f"docs_{os.getpid()}_{time.monotonic_ns()}"
    postgres.sql(f"create database {name}", database="postgres")
    yield postgres.dsn_for(name)
    postgres.sql(f"drop database {name} with (force)", database="postgres")


@pytest_asyncio.fixture
async def programs(page: Page) -> Path | None:
    """Where the programs are that a page has npm install, with a node new enough for them."""
    if not page.npm:
        return None
    wanted = dict(each.rsplit("@", 1) for each in page.npm)
    async with World() as world:
        described = world.folder / "package.json"
        described.write_text(json.dumps({"name": "docs", "private": True, "dependencies": {**wanted, **NODE}}))
        return await install(world, described) / "node_modules" / ".bin"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_page_keeps_its_word(page: Page, desk: Path, programs: Path | None, request: pytest.FixtureRequest) -> None:
    env: dict[str, str] = {}
    if "database" in page.needs:
        env["DEPUTIZE_DATABASE__URL"] = request.getfixturevalue("database")
    reader = Reader(desk, env, programs)
    if "project" in page.needs:
        assert deputize("init", "shop", folder=desk).code == 0
        reader.folder = desk / "shop"
    try:
        if "running" in page.needs:
            reader.leave_running("deputize dev", [])
        for block in page.blocks:
            reader.follow(block)
    finally:
        reader.leave()


def test_the_tutorial_and_every_guide_can_be_run() -> None:
    run = {page.name for page in pages()}

    assert {"README.md", "tutorials/first-call.md", "tutorials/approve-a-dangerous-call.md"} <= run
    assert "how-to/connect-an-mcp-client.md, stdio and http://127.0.0.1:7070/mcp exchanged" in run
    assert {name for name in run if name.startswith("how-to/") and not name.endswith("exchanged")} == {
        "how-to/add-a-hook.md",
        "how-to/ask-another-decision-point.md",
        "how-to/call-from-python.md",
        "how-to/connect-an-mcp-client.md",
        "how-to/decide-who-approves.md",
        "how-to/govern-an-mcp-server.md",
        "how-to/keep-secrets-of-tools.md",
        "how-to/learn-from-approvals.md",
        "how-to/lend-authority-to-an-agent.md",
        "how-to/preview-a-dangerous-call.md",
        "how-to/limit-calls-and-budgets.md",
        "how-to/register-with-a-manifest.md",
        "how-to/run-in-production.md",
        "how-to/see-what-a-caller-sees.md",
        "how-to/run-something-long.md",
        "how-to/write-a-tool.md",
        "how-to/write-and-test-a-policy.md",
    }
