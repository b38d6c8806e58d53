"""Commands in the documentation print what the pages promise."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from deputize.execute.browser.process import find_chromium
from deputize.store.local_postgres import LocalPostgres
from proofs.kit.idp.install import NODE, install_package
from proofs.kit.previous_release import MIGRATE_SCRIPT, NoHistoryError, extract_previous_release
from proofs.kit.sandbox import Sandbox
from tests.acceptance.cli.cli_process import run_deputize
from tests.acceptance.docs.snippets import Page, Reader, load_pages
from tests.support.database_logins import DatabaseLogins, make_production_database
from tests.support.sandbox_host import obstacle
from tests.support.sql_shop import make_sql_shop

DOCS = Path(__file__).resolve().parents[3] / "docs"
# What a new user does first; the other pages take a quarter of an hour.
GATE_PAGES = ("README.md",)


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


@pytest.fixture
def shop(postgres: LocalPostgres) -> Iterator[dict[str, str]]:
    """The addresses of the database of a shop: of its owner, and of the logins that the pages make."""
    with make_sql_shop(postgres) as shop:
        reader = shop.reader.replace("shop_reader:reader", "agent_reader:R")
        writer = shop.writer.replace("shop_writer:writer", "agent_writer:W")
        scratch = f"{writer.rpartition('/')[0]}/agent_scratch".replace("agent_writer:W", "agent_planner:P")
        yield {"SHOP": shop.administrator, "SHOP_READER": reader, "SHOP_WRITER": writer, "SHOP_SCRATCH": scratch}
    postgres.run_sql("drop database if exists agent_scratch with (force)", database="postgres")
    postgres.run_sql("drop role if exists agent_reader, agent_writer, agent_planner", database="postgres")


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


def migrate_as_before(dsn: str, folder: Path) -> None:
    """Give a database the schema of the release before."""
    try:
        env = {**os.environ, **extract_previous_release(folder)}
    except NoHistoryError as error:
        pytest.skip(str(error))
    subprocess.run([sys.executable, "-c", MIGRATE_SCRIPT, dsn], env=env, check=True, timeout=120)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=() if page.name in GATE_PAGES else pytest.mark.nightly)
        for page in load_pages()
    ],
)
def test_a_page_keeps_its_word(
    page: Page, workspace: Path, npm_programs: Path | None, request: pytest.FixtureRequest
) -> None:
    if "sandboxes" in page.needs and obstacle is not None:
        pytest.skip(obstacle)
    if "browser" in page.needs and find_chromium() is None:
        pytest.skip("Chromium is not installed")
    env: dict[str, str] = {}
    if "database" in page.needs and "shop" not in page.needs:
        logins: DatabaseLogins = request.getfixturevalue("database")
        is_production = "production" in page.needs
        env |= {**logins.env, **logins.migration_env} if is_production else {"DEPUTIZE_DATABASE__URL": logins.owner}
        if "release before" in page.needs:
            migrate_as_before(logins.migrator, workspace.parent)
    if "shop" in page.needs:
        env |= request.getfixturevalue("shop")
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


def test_every_tutorial_and_guide_is_run_but_those_that_need_another_machine() -> None:
    pages = [path for folder in ("how-to", "tutorials") for path in (DOCS / folder).glob("*.md")]
    run = {page.name for page in load_pages()}

    assert {path.stem for path in pages if f"{path.parent.name}/{path.name}" not in run} == {
        "back-up-and-restore",
        "index",
        "notify-approvers",
        "protect-development-from-agents",
        "recover-from-a-restore",
        "run-in-containers",
        "run-on-kubernetes",
        "run-sandboxes-in-production",
        "see-what-agents-do",
        "undo-calls",
        "use-the-approval-console",
        "witness-the-log",
    }
