"""A program runs from the files that were reviewed, or not at all."""

import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deputize.core.config_error import ConfigError
from deputize.core.errors import UpstreamUnavailable
from deputize.core.settings import McpServerSettings
from deputize.core.settings.servers import SharedFolderSettings
from deputize.execute.upstreams import program_snapshot
from deputize.execute.upstreams.program_files import compute_digest
from deputize.execute.upstreams.subprocess_server import start_process
from deputize.interfaces.cli.local.program_pins import compute_pins, list_differences, render_toml_value

pytestmark = pytest.mark.requirement("REG-2")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs as another user")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
UID = 64_124
PYTHON = os.path.realpath(sys.executable)
PYTHON_SCRIPT = """
import json, os, sys
import helper
descriptors = [name for name in os.listdir("/proc/self/fd") if int(name) > 2]
facts = {"says": helper.WORD, "arguments": sys.argv[1:], "descriptors": len(descriptors),
         "writable": os.access(__file__, os.W_OK) or os.access(os.path.dirname(__file__), os.W_OK),
         "uid": os.getuid(), "exe": os.readlink("/proc/self/exe")}
print(json.dumps(facts), flush=True)
"""
NODE_SCRIPT = """#!/usr/bin/env node
const { WORD } = require("./lib/helper.js");
console.log(JSON.stringify({ says: WORD, arguments: process.argv.slice(2) }));
"""


def pin(server: McpServerSettings, *paths: str) -> McpServerSettings:
    pins, unpinned_files = compute_pins(server, paths)
    assert unpinned_files == []
    return server.model_copy(update=pins)


async def run(server: McpServerSettings) -> dict[str, Any]:
    process = await start_process(server, None)
    try:
        facts: dict[str, Any] = json.loads(await process.read_line() or b"{}")
        return facts
    finally:
        await process.stop()


async def explain_refusal(server: McpServerSettings) -> str:
    with pytest.raises(UpstreamUnavailable) as raised:
        await run(server)
    assert raised.value.nothing_happened
    return f"{raised.value.message}. {raised.value.advice}"


@pytest.fixture
def python_server(reachable_folder: Path) -> McpServerSettings:
    (reachable_folder / "server.py").write_text(PYTHON_SCRIPT)
    (reachable_folder / "helper.py").write_text('WORD = "reviewed"\n')
    command = (PYTHON, "-B", "server.py", "x")
    server = McpServerSettings(name="orders", command=command, folder=reachable_folder, sandbox=False)
    return pin(server, "helper.py")


@pytest.fixture
def node_server(reachable_folder: Path) -> McpServerSettings:
    (reachable_folder / "lib").mkdir()
    (reachable_folder / "lib" / "helper.js").write_text('exports.WORD = "reviewed";\n')
    script = reachable_folder / "server.js"
    script.write_text(NODE_SCRIPT)
    script.chmod(0o755)
    server = McpServerSettings(name="orders", command=(str(script), "x"), folder=reachable_folder, sandbox=False)
    return pin(server, "lib")


async def test_a_python_program_runs_from_copies_of_its_pinned_files(python_server: McpServerSettings) -> None:
    facts = await run(python_server)
    assert (facts["says"], facts["arguments"], facts["exe"]) == ("reviewed", ["x"], PYTHON)
    # The one that lists the others: the binary's descriptor closed when it was executed.
    assert facts["descriptors"] <= 1


@needs_root
async def test_the_programs_own_user_can_read_its_files_and_write_none(python_server: McpServerSettings) -> None:
    facts = await run(python_server.model_copy(update={"uid": UID}))
    assert (facts["uid"], facts["says"], facts["writable"]) == (UID, "reviewed", False)


@needs_node
async def test_a_node_program_runs_with_the_interpreter_that_its_first_line_names(
    node_server: McpServerSettings,
) -> None:
    assert await run(node_server) == {"says": "reviewed", "arguments": ["x"]}
    assert shutil.which("node") in node_server.files


@pytest.mark.parametrize("name", ["server.py", "helper.py"])
async def test_a_changed_script_or_listed_file_is_refused_with_its_name_and_what_to_do(
    python_server: McpServerSettings, name: str
) -> None:
    assert python_server.folder is not None
    file = python_server.folder / name
    file.write_text(file.read_text() + "\n# more\n")
    refusal = await explain_refusal(python_server)
    assert f"{file} changed since it was pinned" in refusal
    assert "deputize servers pin orders" in refusal
    new_pins, _ = compute_pins(python_server)
    assert list_differences(python_server, new_pins) == [name]
    assert (await run(python_server.model_copy(update=new_pins)))["says"] == "reviewed"


@needs_node
async def test_a_changed_added_or_linked_file_in_a_listed_folder_is_refused(
    node_server: McpServerSettings, tmp_path: Path
) -> None:
    assert node_server.folder is not None
    folder = node_server.folder / "lib"
    (folder / "more.js").write_text("")
    assert "changed since it was pinned" in await explain_refusal(node_server)
    (folder / "more.js").unlink()
    (folder / "helper.js").write_text('exports.WORD = "swapped";\n')
    assert "changed since it was pinned" in await explain_refusal(node_server)
    (tmp_path / "helper.js").write_text('exports.WORD = "reviewed";\n')
    (folder / "helper.js").unlink()
    (folder / "helper.js").symlink_to(tmp_path / "helper.js")
    assert "leaves its pinned folder" in await explain_refusal(node_server)


async def test_a_changed_or_relinked_interpreter_is_refused(python_server: McpServerSettings, tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.symlink_to(PYTHON)
    server = pin(python_server.model_copy(update={"command": (str(link), *python_server.command[1:])}))
    assert (await run(server))["says"] == "reviewed"
    link.unlink()
    link.symlink_to(shutil.which("true") or "/bin/true")
    assert f"{link} changed since it was pinned" in await explain_refusal(server)


@pytest.mark.parametrize("is_binary", [False, True])
async def test_a_file_that_is_swapped_after_its_check_does_not_run(
    python_server: McpServerSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_binary: bool
) -> None:
    """Swap the script, and then the binary, at the last moment before the process starts."""
    binary = tmp_path / "python3"
    shutil.copy(PYTHON, binary)
    # Another user's file is copied before it runs, because that user could write to it after the check.
    binary.chmod(binary.stat().st_mode | stat.S_IWOTH)
    server = pin(python_server.model_copy(update={"command": (str(binary), *python_server.command[1:])}))
    prepare: Callable[..., Any] = program_snapshot.prepare_program

    def swap_after_check(*arguments: Any) -> Any:
        prepared = prepare(*arguments)
        if is_binary:
            binary.write_bytes(b'#!/bin/sh\necho \'{"says": "swapped"}\'\n')
        else:
            (server.folder or Path()).joinpath("server.py").write_text('print(\'{"says": "swapped"}\', flush=True)')
        return prepared

    monkeypatch.setattr("deputize.execute.upstreams.subprocess_server.prepare_program", swap_after_check)
    facts = await run(server.model_copy(update={"env": {"PYTHONHOME": sys.base_prefix}}))
    assert facts["says"] == "reviewed"


async def test_an_unlisted_module_beside_the_script_is_not_there(python_server: McpServerSettings) -> None:
    """Also a module that shadows one of the standard library: only listed files are beside the script."""
    assert python_server.folder is not None
    (python_server.folder / "json.py").write_text('def dumps(_): return \'{"says": "shadow"}\'\n')
    assert (await run(python_server))["says"] == "reviewed"


async def test_a_pinned_program_whose_script_has_no_digest_is_refused(python_server: McpServerSettings) -> None:
    bare = python_server.model_copy(update={"files": {}})
    assert "server.py has no digest" in await explain_refusal(bare)
    assert (await run(bare.model_copy(update={"accept_risk": ("unpinned",)})))["says"] == "reviewed"


async def test_a_module_after_m_runs_from_its_pinned_copy(python_server: McpServerSettings) -> None:
    assert python_server.folder is not None
    server = pin(python_server.model_copy(update={"command": (PYTHON, "-Bm", "server", "x"), "files": {}}), "helper.py")
    assert sorted(server.files) == ["helper.py", "server.py"]
    (python_server.folder / "json.py").write_text('def dumps(_): return \'{"says": "shadow"}\'\n')
    facts = await run(server)
    assert (facts["says"], facts["arguments"]) == ("reviewed", ["x"])
    (python_server.folder / "server.py").write_text("")
    assert "changed since it was pinned" in await explain_refusal(server)
    elsewhere = server.model_copy(update={"command": (PYTHON, "-m", "installed")})
    assert compute_pins(elsewhere)[1] == ["the code or module after -m"]


@pytest.mark.parametrize(
    ("command", "unpinned"),
    [
        (("env", PYTHON, "server.py"), "what env starts"),
        (("timeout", "600", PYTHON, "server.py"), "what timeout starts"),
        (("npx", "-y", "orders"), "what npx starts"),
        (("sh", "-ec", "exec python3 FOLDER/server.py"), "the code or module after -ec"),
        ((PYTHON, "-Ic", "import server"), "the code or module after -Ic"),
        ((PYTHON,), f"what {os.path.basename(PYTHON)} runs without a script"),
        (("java", "-cp", "server.py:helper.py", "Main"), "server.py in the argument server.py:helper.py"),
        (("java", "-javaagent:FOLDER/server.py", "-jar", "helper.py"), "FOLDER/server.py in the argument"),
        (("orders", "data"), "FOLDER/data"),
        (("orders", "--config=server.py"), "FOLDER/server.py"),
        (("node", "server.py", "helper.py"), "FOLDER/helper.py"),
    ],
)
async def test_a_command_whose_code_can_be_replaced_is_never_pinned_as_a_whole(
    python_server: McpServerSettings, tmp_path: Path, command: tuple[str, ...], unpinned: str
) -> None:
    assert python_server.folder is not None
    if not os.path.isabs(command[0]):
        shutil.copy(PYTHON, tmp_path / command[0])
        command = (str(tmp_path / command[0]), *command[1:])
    (python_server.folder / "data").mkdir()
    command = tuple(word.replace("FOLDER", str(python_server.folder)) for word in command)
    server = python_server.model_copy(update={"command": command, "files": {}})
    pins, unpinned_files = compute_pins(server)
    assert any(each.startswith(unpinned.replace("FOLDER", str(python_server.folder))) for each in unpinned_files)
    assert "has no digest" in await explain_refusal(server.model_copy(update=pins))


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (("orders", "--port", "80"), []),
        (("bash", "-e", "server.py"), ["server.py"]),
        (("node", "--no-warnings", "server.py"), ["server.py"]),
        (("java", "-Xmx1g", "-jar", "server.py"), ["server.py"]),
        ((PYTHON, "-E", "-W", "error", "server.py", "https://example.org/x"), ["server.py"]),
    ],
)
def test_a_plain_command_is_pinned_with_its_script(
    python_server: McpServerSettings, tmp_path: Path, command: tuple[str, ...], names: list[str]
) -> None:
    if not os.path.isabs(command[0]):
        shutil.copy(PYTHON, tmp_path / command[0])
        command = (str(tmp_path / command[0]), *command[1:])
    pins, unpinned_files = compute_pins(python_server.model_copy(update={"command": command, "files": {}}))
    assert (unpinned_files, sorted(pins.get("files", {}))) == ([], names)


def test_what_a_sandboxed_program_works_on_needs_no_digest(python_server: McpServerSettings) -> None:
    assert python_server.folder is not None
    (python_server.folder / "data").mkdir()
    named = {"command": (PYTHON, "server.py", "data"), "folders": (SharedFolderSettings(path=Path("data")),)}
    server = python_server.model_copy(update={**named, "files": {}})
    assert compute_pins(server)[1] == [str(python_server.folder / "data")]
    assert compute_pins(server.model_copy(update={"sandbox": True}))[1] == []


def test_variables_by_which_code_is_found_are_not_pinned(python_server: McpServerSettings) -> None:
    server = python_server.model_copy(update={"env": {"PYTHONPATH": "lib", "TOKEN": "x"}})
    assert compute_pins(server)[1] == ["the code that PYTHONPATH names"]


def test_pins_are_plain_digests_in_toml_and_a_missing_program_is_named(python_server: McpServerSettings) -> None:
    assert python_server.folder is not None
    pins, _ = compute_pins(python_server)
    script_digest = hashlib.sha256((python_server.folder / "server.py").read_bytes()).hexdigest()
    assert pins["files"]["server.py"] == script_digest
    assert f'"server.py" = "{script_digest}"' in render_toml_value(pins["files"])
    with pytest.raises(ConfigError, match="no-such-program was not found"):
        compute_pins(McpServerSettings(name="orders", command=("no-such-program",)))


def test_the_digest_of_a_folder_covers_names_contents_and_links(tmp_path: Path) -> None:
    digests = set()
    (tmp_path / "a").mkdir()
    file = tmp_path / "a" / "one"
    file.write_text("1")
    digests.add(compute_digest(str(tmp_path)))
    file.write_text("2")
    digests.add(compute_digest(str(tmp_path)))
    file.rename(tmp_path / "a" / "two")
    digests.add(compute_digest(str(tmp_path)))
    (tmp_path / "b").symlink_to("a/two")
    digests.add(compute_digest(str(tmp_path)))
    assert len(digests) == 4


def test_a_sandbox_sees_of_a_virtual_environment_what_python_needs_and_nothing_beside_it(tmp_path: Path) -> None:
    project, snapshot = tmp_path / "project", tmp_path / "snapshot"
    (project / "bin").mkdir(parents=True)
    (project / "lib").mkdir()
    (project / "bin" / "python").symlink_to(PYTHON)
    for name in ("pyvenv.cfg", "master.key", "server.py"):
        (project / name).touch()
    server = McpServerSettings(
        name="shop", command=(str(project / "bin" / "python"), str(project / "server.py")), accept_risk=("unpinned",),
    )  # fmt: skip
    program = program_snapshot.prepare_sandboxed_program(server, os.defpath, snapshot)
    shown = {each.path for each in program.folders if each.path.startswith(str(project))}
    assert shown == {str(project / name) for name in ("pyvenv.cfg", "bin", "lib", "server.py")}
    assert program.command[0] == str(project / "bin" / "python")
