"""Commands in the documentation print what the pages promise."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from deputize.store.local_postgres import LocalPostgres
from proofs.kit.idp.install import NODE, install_package
from proofs.kit.sandbox import Sandbox
from tests.acceptance.cli.cli_process import run_deputize
from tests.acceptance.docs.snippets import Page, Reader, load_pages
from tests.support.database_logins import DatabaseLogins, make_production_database


@pytest.fixture
def workspace() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="deputize-docs-"))
    folder.chmod(0o711)
    (folder / "work").mkdir()
    yield folder / "work"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database(postgres: LocalPostgres) -> Iterator[DatabaseLogins]:
    with make_production_database(postgres) as logins:
        yield logins


@pytest_asyncio.fixture
async def npm_programs(page: Page) -> Path | None:
    """Install the npm packages of a page, with a recent node, and return the folder of their programs."""
    if not page.npm:
        return None
    wanted = dict(each.rsplit("@", 1) for each in page.npm)
    async with Sandbox() as world:
        described = world.folder / "package.json"
        described.write_text(json.dumps({"name": "docs", "private": True, "dependencies": {**wanted, **NODE}}))
        return await install_package(world, described) / "node_modules" / ".bin"


@pytest.mark.parametrize("page", load_pages(), ids=lambda page: page.name)
def test_a_page_keeps_its_word(
    page: Page, workspace: Path, npm_programs: Path | None, request: pytest.FixtureRequest
) -> None:
    env: dict[str, str] = {}
    if "database" in page.needs:
        logins: DatabaseLogins = request.getfixturevalue("database")
        is_production = "production" in page.needs
        env |= {**logins.env, **logins.migration_env} if is_production else {"DEPUTIZE_DATABASE__URL": logins.owner}
    reader = Reader(workspace, env, npm_programs)
    if "project" in page.needs:
        assert run_deputize("init", "shop", folder=workspace).code == 0
        reader.folder = workspace / "shop"
    try:
        if "running" in page.needs:
            reader.start_in_background("deputize dev", [])
        for block in page.blocks:
            reader.run_block(block)
    finally:
        reader.stop_background()


def test_the_tutorial_and_every_guide_can_be_run() -> None:
    run = {page.name for page in load_pages()}

    names = ("first-call", "first-hour", "approve-a-dangerous-call", "publish-a-tool", "prove-what-an-agent-did")
    tutorials = {f"tutorials/{name}.md" for name in names}
    assert {"README.md", *tutorials} <= run
    assert "how-to/connect-an-mcp-client.md, stdio and http://127.0.0.1:7070/mcp exchanged" in run
    assert {name for name in run if name.startswith("how-to/") and not name.endswith("exchanged")} == {
        "how-to/add-a-hook.md",
        "how-to/call-from-python.md",
        "how-to/call-tools-over-grpc.md",
        "how-to/check-service-levels.md",
        "how-to/compare-sources.md",
        "how-to/configure-approvals.md",
        "how-to/connect-an-mcp-client.md",
        "how-to/delegate-to-an-agent.md",
        "how-to/deprecate-a-version.md",
        "how-to/deploy-policies-from-a-pipeline.md",
        "how-to/erase-a-person.md",
        "how-to/export-and-import-tools.md",
        "how-to/give-tools-to-a-model.md",
        "how-to/govern-an-mcp-server.md",
        "how-to/import-a-grpc-service.md",
        "how-to/import-an-openapi-service.md",
        "how-to/inspect-a-tool-surface.md",
        "how-to/limit-calls-and-budgets.md",
        "how-to/manage-tool-secrets.md",
        "how-to/monitor-a-gateway.md",
        "how-to/negotiate-a-version.md",
        "how-to/notice-injection-attempts.md",
        "how-to/observe-before-you-enforce.md",
        "how-to/preview-a-dangerous-call.md",
        "how-to/read-the-audit.md",
        "how-to/register-with-a-manifest.md",
        "how-to/release-a-new-version.md",
        "how-to/return-large-results.md",
        "how-to/revoke-authority.md",
        "how-to/rotate-keys.md",
        "how-to/run-in-production.md",
        "how-to/see-what-calls-cost.md",
        "how-to/send-events.md",
        "how-to/suggest-permits-from-approvals.md",
        "how-to/survive-failing-services.md",
        "how-to/use-an-authzen-service.md",
        "how-to/use-durable-runs.md",
        "how-to/write-a-tool.md",
        "how-to/write-and-test-a-policy.md",
    }
