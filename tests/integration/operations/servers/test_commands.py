"""Commands of a manifest, called through the gateway."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deputize.core.settings import PolicySettings, SandboxSettings, ServiceSettings, Settings
from tests.integration.conftest import ADMIN, HttpGateway, serve_gateway
from tests.support.command_manifest import make_command, write_commands
from tests.support.sandbox_host import needs_sandboxes

pytestmark = [pytest.mark.requirement("EXE-1"), pytest.mark.asyncio(loop_scope="session"), needs_sandboxes]
WALLS = """
@id("open") permit (principal, action, resource);
@id("walled") @backend("namespaces") forbid (principal, action, resource);
"""
COUNT = "import sys, time; text = sys.stdin.read(); time.sleep(float(sys.argv[1])); print(len(text.split()))"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder that every user can read."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def write_lab(folder: Path, *, word: str = "text") -> ServiceSettings:
    schema = {
        "properties": {word: {"type": "string", "maxLength": 20}, "seconds": {"type": "number"}}, "required": [word],
    }  # fmt: skip
    written = folder / "written"
    written.mkdir(exist_ok=True)
    written.chmod(0o777)
    return write_commands(
        folder,
        make_command("count", "-S", "-c", COUNT, "{seconds}", stdin=word, input_schema=schema),
        make_command("note", "-S", "-c", f"open('{written}/note', 'w'); import time; time.sleep(60)", timeout=2,
                     folders=[{"path": str(written), "write": True}], effects="write"),
    )  # fmt: skip


async def test_commands_are_tools_like_others(fresh_database: str, tmp_path: Path, folder: Path) -> None:
    def change(settings: Settings) -> Settings:
        sandboxes = SandboxSettings(folder=tmp_path / "sandboxes", accept=("weak_limits",))
        return settings.model_copy(update={"services": (service,), "sandboxes": sandboxes})

    service = write_lab(folder)
    async with serve_gateway(fresh_database, tmp_path, change=change, gateway_options={"tools": ()}) as gateway:
        token = get_token(gateway)
        answer = await gateway.call("lab.count", {"text": "two words", "seconds": 0}, token=token)
        assert answer.json()["result"] == {"exit_code": 0, "stdout": "2\n", "stderr": ""}, answer.text
        refused = await gateway.call("lab.count", {"text": "x" * 21, "seconds": 0}, token=token)
        assert refused.json()["error"]["slug"] == "schema-violation", refused.text
        option = await gateway.call("lab.count", {"text": "a", "seconds": -1}, token=token)
        assert option.json()["error"]["slug"] == "semantic-violation", option.text
        # A person who calls it takes part; what is killed midway may have written.
        killed = await gateway.call("lab.note", {}, token=token)
        assert (killed.status_code, killed.json()["error"]["slug"]) == (504, "outcome-unknown"), killed.text
        assert (folder / "written" / "note").exists()
    service = write_lab(folder, word="words")
    async with serve_gateway(fresh_database, tmp_path, change=change, gateway_options={"tools": ()}) as gateway:
        token = get_token(gateway)
        versions = (await gateway.get("/v1/tools/lab.count/versions", token=token)).json()["versions"]
        assert [each["version"] for each in versions] == ["2.0.0", "1.0.0"]
        assert (await gateway.call("lab.count", {"words": "a", "seconds": 0}, token=token)).status_code == 200
        # The settings do not declare it any more, so it runs nothing.
        old = await gateway.call("lab.count", {"text": "a", "seconds": 0}, token=token, version="1.0.0")
        assert old.json()["error"]["slug"] in ("requires-setup", "tool-retired"), old.text


@pytest.mark.requirement("GOV-2")
async def test_rules_demand_a_sandbox_and_are_met_or_name_what_is_missing(
    fresh_database: str, tmp_path: Path, folder: Path
) -> None:
    def change(settings: Settings) -> Settings:
        sandboxes = SandboxSettings(folder=tmp_path / "sandboxes", accept=("weak_limits",))
        return settings.model_copy(update={"services": (write_lab(folder),), "sandboxes": sandboxes, "policy": policy})

    policy_file = tmp_path / "walls.cedar"
    policy_file.write_text(WALLS)
    policy = PolicySettings(files=(str(policy_file),))
    async with serve_gateway(fresh_database, tmp_path, change=change) as gateway:
        token = gateway.token("root", scopes=("lab:read", "lab:write", "shop:read", ADMIN))
        met = await gateway.call("lab.count", {"text": "two words", "seconds": 0}, token=token)
        assert met.json()["result"]["stdout"] == "2\n", met.text
        refused = await gateway.call("shop.get_user", {"id": 7}, token=token)
        error = refused.json()["error"]
        assert (refused.status_code, error["slug"]) == (403, "permission-denied"), refused.text
        assert "walled (" in error["message"]
        assert "would run in no sandbox here, and the rule demands namespaces" in error["message"]
        assert "narrow the rule" in error["advice"]


def get_token(gateway: HttpGateway) -> str:
    return gateway.token("root", scopes=("lab:write", ADMIN))
