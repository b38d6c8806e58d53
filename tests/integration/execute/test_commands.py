"""Commands, run for real in sandboxes: what they see, who ended them, what they leave, and what is refused."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deputize.composition.command_driver import build_command_driver
from deputize.core.contract.contract import Contract, UpstreamIdempotency
from deputize.core.contract.isolation import BackendDemand
from deputize.core.contract.tools import ToolContext
from deputize.core.errors import (
    EgressDenied,
    OutcomeUnknown,
    OutOfMemory,
    Problem,
    ProgramCrashed,
    ResourceLimitExceeded,
    ResultInvalid,
    SandboxFailed,
    ToolConflict,
    ToolFailed,
    ToolPrecondition,
    ToolRequiresSetup,
    ToolTimeout,
)
from deputize.core.settings import KeySettings, SandboxSettings, Settings, VaultSettings
from deputize.execute.drivers.command import CommandDriver
from deputize.sandboxes import client
from deputize.sandboxes.port import Backend
from deputize.sandboxes.supervisor import list_marked_processes, mark_processes
from tests.support.command_manifest import make_command, write_commands
from tests.support.egress_server import make_certificate, make_ok_response, run_server
from tests.support.sandbox_host import needs_gvisor, needs_sandboxes

pytestmark = [pytest.mark.requirement("EXE-1", "EXE-2"), needs_sandboxes]
HOSTS = {"network": {"allowed_domains": ["localhost"], "allowed_ports": [1]}, "effects": "write"}
ENDS = {
    "its deadline": ("import time; time.sleep(60)", ToolTimeout),
    "memory": ("b'x' * 500_000_000", OutOfMemory),
    "a crash": ("import ctypes; ctypes.string_at(0)", ProgramCrashed),
    # Its own doing, whatever the number looks like.
    "exit 137": ("import os; os._exit(137)", ProgramCrashed),
    "a flood of output": ("while True: print('x' * 9999)", ResourceLimitExceeded),
    "a flood of processes": ("import os\nwhile True: os.fork() or __import__('time').sleep(60)", ResourceLimitExceeded),
}


@dataclass
class Lab:
    """A folder that every user can read, and the driver of the commands that were written there."""

    folder: Path
    supervisor: Path

    @contextlib.asynccontextmanager
    async def open(
        self, *tools: dict[str, Any], private_hosts: tuple[str, ...] = (), **more: Any
    ) -> AsyncIterator["Commands"]:
        settings = Settings(
            environment="development",
            services=(write_commands(self.folder, *tools, private_hosts=private_hosts),),
            **{
                "sandboxes": SandboxSettings(folder=self.supervisor),
                "keys": KeySettings(master_file=self.folder / "keys" / "master"),
                **more,
            },
        )
        async with contextlib.AsyncExitStack() as stack:
            yield Commands(build_command_driver(settings, stack))


@dataclass
class Commands:
    driver: CommandDriver

    def find(self, name: str = "run") -> Contract:
        return self.driver._declared["dev", "lab"][f"lab/{name}"]

    async def run(
        self, contract: Contract | None = None, *, tenant: str = "dev", seconds: float = 60,
        demands: tuple[BackendDemand, ...] = (), **arguments: Any,
    ) -> Any:  # fmt: skip
        context = ToolContext(call_id="call", tenant=tenant, user="ana", agent="bot", session=None, key="call",
                              attempt=1, seconds_left=seconds, traceparent=None, backend_demands=demands)  # fmt: skip
        return await self.driver.run(self.driver.find_tool(contract or self.find()), arguments, context, seconds)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "keys").mkdir()
        yield Lab(folder, tmp_path / "sandboxes")


def python(code: str, *words: str, **fields: Any) -> dict[str, Any]:
    return make_command("run", "-S", "-c", code, *words, **fields)


async def test_a_command_gets_its_words_its_input_and_nothing_else(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_SECRET", "only-the-gateway-knows")
    code = "import os, sys; print(sys.argv[1:], sys.stdin.read(), sorted(os.environ), os.getcwd(), os.listdir('/tmp'))"
    tool = python(code, "--name={name}", "{place}", stdin="text", properties=("name", "place", "text"),
                  environment={"MODE": "quick"})  # fmt: skip
    async with lab.open(tool) as commands:
        result = await commands.run(name="a b; id", text="hello\n")
    assert result == {
        "exit_code": 0, "stderr": "",
        "stdout": "['--name=a b; id'] hello\n ['HOME', 'LANG', 'MODE', 'PATH', 'PWD'] /tmp []\n",
    }  # fmt: skip


async def test_exit_codes_mean_what_the_manifest_says(lab: Lab) -> None:
    codes = {"1": "ok", "2": "precondition", "3": "conflict"}
    schema = {"properties": {"code": {"type": "integer"}}}
    script = "import sys; sys.exit(int(sys.argv[1]) or 'it is broken')"
    tool = python(script, "{code}", input_schema=schema, exit_codes={**codes, "4": "failed"})
    async with lab.open(tool) as commands:
        assert (await commands.run(code=1))["exit_code"] == 1
        for code, kind in ((2, ToolPrecondition), (3, ToolConflict), (4, ToolFailed), (5, ToolFailed)):
            with pytest.raises(kind, match=f"ended with {code}") as raised:
                await commands.run(code=code)
            assert raised.value.details == {"ended_by": "exit", "exit_code": code}
        assert (await commands.run(code=0))["stderr"] == "it is broken\n"


@pytest.mark.parametrize("name", ENDS)
async def test_who_ended_a_command_decides_what_its_call_ends_with(lab: Lab, name: str) -> None:
    code, kind = ENDS[name]
    limits = {"memory": "64Mi", "processes": 16}
    seconds = 1.5 if kind is ToolTimeout else 60
    for fields in ({}, HOSTS):
        async with lab.open(python(code, limits=limits, **fields)) as commands:
            if not fields and kind is OutOfMemory and commands.driver._sandboxes.weak_limits:
                pytest.skip("this host has no control groups")
            with pytest.raises(Problem) as raised:
                await commands.run(seconds=seconds)
            problem = raised.value
            if fields and kind is ResourceLimitExceeded:
                # Not retryable, so the driver itself says that a change may have been made.
                assert isinstance(problem, OutcomeUnknown)
                problem = problem.__cause__  # type: ignore[assignment]  # it was raised from the limit
            assert isinstance(problem, kind), problem
            assert not raised.value.nothing_happened
            if kind is ProgramCrashed:
                assert problem.details["signal"] in (9, 11)


async def test_a_killed_command_that_could_change_nothing_has_changed_nothing(lab: Lab) -> None:
    # What the tier allows is more than what this program was given.
    tool = python("import time; time.sleep(60)", sandbox={"tier": 3}, effects="write")
    async with lab.open(tool) as commands:
        with pytest.raises(ToolTimeout) as raised:
            await commands.run(seconds=1)
        assert raised.value.nothing_happened
    safe = python("import time; time.sleep(60)", **HOSTS, idempotency="deduplicates")
    async with lab.open(safe) as commands:
        assert commands.find().idempotency.upstream is UpstreamIdempotency.DEDUPLICATES


async def test_a_canceled_call_ends_its_program(lab: Lab) -> None:
    async with lab.open(python("import time; time.sleep(600)")) as commands:
        call = asyncio.create_task(commands.run())
        async with asyncio.timeout(60):
            while not list_marked_processes(mark_processes(lab.supervisor)):  # noqa: ASYNC110  # no event of ours
                await asyncio.sleep(0.02)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            while list_marked_processes(mark_processes(lab.supervisor)):  # noqa: ASYNC110  # no event of ours
                await asyncio.sleep(0.02)


async def test_a_changed_program_is_not_run(lab: Lab) -> None:
    program = lab.folder / "report"
    program.write_text("#!/bin/sh\necho first\n")
    program.chmod(0o755)
    async with lab.open(make_command("run", program=str(program))) as commands:
        assert (await commands.run())["stdout"] == "first\n"
        program.write_text("#!/bin/sh\necho second\n")
        with pytest.raises(ToolRequiresSetup, match="changed since it was imported") as raised:
            await commands.run()
        assert raised.value.nothing_happened
        assert "review the program" in raised.value.advice
        program.unlink()
        with pytest.raises(SandboxFailed) as gone:
            await commands.run()
        assert gone.value.nothing_happened


async def test_folders_are_read_and_only_written_if_the_manifest_says_so(lab: Lab) -> None:
    for name in ("data", "results", "other"):
        (lab.folder / name).mkdir()
        (lab.folder / name).chmod(0o777)
        (lab.folder / name / "note.txt").write_text(f"of {name}")
    data, results = str(lab.folder / "data"), str(lab.folder / "results")
    code = "import sys; file = open(*sys.argv[1:]); print(file.read() if file.mode == 'r' else file.write('x'))"
    tool = python(code, "{file}", "{mode}", properties=("file", "mode"), working_folder=data,
                  folders=[{"path": data}, {"path": results, "write": True}])  # fmt: skip
    async with lab.open(tool) as commands:
        assert (await commands.run(file="note.txt"))["stdout"] == "of data\n"
        await commands.run(file=f"{results}/new", mode="w")
        assert (lab.folder / "results" / "new").read_text() == "x"
        for file, mode in (("note.txt", "w"), (str(lab.folder / "other" / "note.txt"), "r"), ("/etc/shadow", "r")):
            with pytest.raises(ToolFailed):
                await commands.run(file=file, mode=mode)


@pytest.mark.parametrize("place", [".", "keys", "keys/master", "vault"])
async def test_the_keys_of_the_gateway_are_never_shown(lab: Lab, place: str) -> None:
    (lab.folder / "keys" / "master").write_text("key")
    tool = python("pass", folders=[{"path": str((lab.folder / place).resolve())}])
    async with lab.open(tool, vault=VaultSettings(token_file=lab.folder / "vault" / "token")) as commands:
        with pytest.raises(ToolRequiresSetup, match="which belongs to the gateway") as raised:
            await commands.run()
        assert raised.value.nothing_happened


async def test_a_command_changes_nothing_that_the_gateway_runs_on(lab: Lab) -> None:
    manifests = lab.folder / "manifests"
    manifests.mkdir(mode=0o755)
    tool = python("pass", folders=[{"path": str(manifests), "write": True}], effects="write")
    keys = KeySettings(master_file=lab.folder / "keys" / "master")
    async with Lab(manifests, lab.supervisor).open(tool, keys=keys) as commands:
        with pytest.raises(ToolRequiresSetup, match=r"must not be changed by a program: lab\.json") as raised:
            await commands.run()
        assert raised.value.nothing_happened


async def test_no_program_leads_another_to_a_folder_that_is_not_declared(lab: Lab) -> None:
    shared, other = lab.folder / "shared", lab.folder / "other"
    maps, way = shared / "maps", lab.folder / "way"
    for each in (shared, maps, other):
        each.mkdir()
        each.chmod(0o777)
    (other / "secret").write_text("not declared")
    # A link of the operator, to where a program may put others.
    way.symlink_to(maps)
    swap = make_command(
        "swap", "-S", "-c", f"import os; os.rmdir({str(maps)!r}); os.symlink({str(other)!r}, {str(maps)!r})",
        folders=[{"path": str(shared), "write": True}], effects="write",
    )  # fmt: skip
    looks = [
        make_command(name, "-S", "-c", f"import os; print(os.listdir({str(path)!r}))", folders=[{"path": str(path)}])
        for name, path in (("direct", maps), ("indirect", way))
    ]
    async with lab.open(swap, *looks) as commands:
        for name in ("direct", "indirect"):
            assert (await commands.run(commands.find(name)))["stdout"] == "[]\n"
        await commands.run(commands.find("swap"))
        for name in ("direct", "indirect"):
            with pytest.raises(ToolRequiresSetup, match="shared/maps leads to another folder") as raised:
                await commands.run(commands.find(name))
            assert raised.value.nothing_happened


@pytest.mark.parametrize(("depth", "name"), [(1_500, "d"), (17, "d" * 250)])
async def test_no_depth_hides_what_a_program_leaves(lab: Lab, depth: int, name: str) -> None:
    code = (
        f"import os\nfor _ in range({depth}): os.mkdir({name!r}); os.chdir({name!r})\n"
        "open('x', 'wb').write(b'x' * 900_000)"
    )
    tool = python(code, files={"count": 20, "bytes": 1_000_000}, working_folder="/out")
    async with lab.open(tool) as commands, asyncio.timeout(30):
        with pytest.raises(ResourceLimitExceeded):
            await commands.run()


LEAVE = """
import os
os.makedirs("/out/sub")
open("/out/report.txt", "w").write("sum: 7")
open("/out/sub/picture", "wb").write(b"\\xff\\x00")
os.symlink("/etc/passwd", "/out/link")
os.mkfifo("/out/pipe")
"""


async def test_files_that_a_program_leaves_are_part_of_the_result(lab: Lab) -> None:
    async with lab.open(python(LEAVE, files={})) as commands:
        assert (await commands.run())["files"] == [
            {"path": "report.txt", "bytes": 6, "text": "sum: 7"},
            {"path": "sub/picture", "bytes": 2, "base64": "/wA="},
        ]


@pytest.mark.parametrize(
    "code",
    [
        "open('/out/large', 'wb').write(bytes(2_000_000))",
        "open('/out/large', 'wb').truncate(2_000_000)",
        "[open('/out/%d' % each, 'w') for each in range(50)]",
        # What did not fit is missing, whatever the program makes of that.
        "import os\ntry:\n    open('/out/large', 'wb').write(bytes(2_000_000))\nexcept OSError:\n    os._exit(0)",
    ],
)
async def test_a_program_that_leaves_too_much_has_no_result(lab: Lab, code: str) -> None:
    async with lab.open(python(code, files={"count": 5, "bytes": 100_000})) as commands:
        with pytest.raises(ResourceLimitExceeded, match="more"):
            await commands.run()


FLOOD = """
import errno, os
file = os.open("/out/flood", os.O_WRONLY | os.O_CREAT)
try:
    while True:
        os.write(file, bytes(4_096))
except OSError as error:
    print(errno.errorcode[error.errno], os.fstat(file).st_size)
os.unlink("/out/flood")
os.close(file)
open("/out/small", "w").write("kept")
"""


async def test_a_flood_of_files_finds_no_room_and_touches_no_disk(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing can be made in the temporary folder of the host.
    monkeypatch.setattr(tempfile, "tempdir", "/none")
    async with lab.open(python(FLOOD, files={"count": 5, "bytes": 1_048_576})) as commands:
        result = await commands.run()
    assert result["stdout"] == f"ENOSPC {1_048_576 + 5 * 4_096}\n"
    assert result["files"] == [{"path": "small", "bytes": 4, "text": "kept"}]


async def test_a_program_that_writes_more_than_declared_is_ended(lab: Lab) -> None:
    async with lab.open(python("print('x' * 2_000)", output_bytes=1_000)) as commands:
        with pytest.raises(ResourceLimitExceeded, match="wrote more"):
            await commands.run()


async def test_output_that_is_declared_as_json_is_parsed(lab: Lab) -> None:
    async with lab.open(
        python("print('[1, {}]')", output="json"),
    ) as commands:
        assert (await commands.run())["output"] == [1, {}]
    async with lab.open(python("print('[1')", output="json")) as commands:
        with pytest.raises(ResultInvalid, match="no JSON"):
            await commands.run()


FETCH = """
import ssl, sys, urllib.request
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
print(urllib.request.urlopen("https://localhost:" + sys.argv[1], timeout=30, context=context).read().decode())
"""


async def test_named_hosts_are_reached_and_every_attempt_is_in_the_result(lab: Lab, tmp_path: Path) -> None:
    tls, _ = make_certificate(tmp_path, "localhost")
    async with (
        run_server(lambda path, name: make_ok_response(b"hello"), tls) as listed,
        run_server(lambda path, name: make_ok_response(b"hello"), tls) as other,
    ):
        network = {"allowed_domains": ["localhost"], "allowed_ports": [listed.port]}
        tool = python(FETCH, "{port}", properties=("port",), network=network, effects="read")
        async with lab.open(tool) as commands:
            # Where a name leads is decided by others, so a contract alone does not lead inside.
            with pytest.raises(EgressDenied, match=f"localhost:{listed.port}"):
                await commands.run(port=str(listed.port))
            assert listed.heads == []
        async with lab.open(tool, private_hosts=(f"LocalHost:{listed.port}",)) as commands:
            result = await commands.run(port=str(listed.port))
            assert result["stdout"] == "hello\n"
            assert result["connections"] == [{"target": f"localhost:{listed.port}"}]
            with pytest.raises(EgressDenied, match=f"localhost:{other.port}") as raised:
                await commands.run(port=str(other.port))
            assert raised.value.details["connections"][0]["refused"]
        assert other.heads == []
        async with lab.open(python(FETCH, "{port}", properties=("port",))) as commands:
            with pytest.raises(ToolFailed):
                await commands.run(port=str(listed.port))
        assert len(listed.heads) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"network": {"allowed_domains": ["localhost"]}, "sandbox": {"tier": 2}},
        {"limits": {"memory": "64Gi"}},
        {"effects": "read", "sandbox": {"tier": 2, "backend": "interpreter"}},
        {"auth": {"scopes": []}},
    ],
)
async def test_a_contract_that_was_registered_elsewhere_runs_nothing_more(lab: Lab, change: dict[str, Any]) -> None:
    tool = python("pass", network={"allowed_domains": ["api.example"]}, effects="write")
    async with lab.open(tool) as commands:
        changed = Contract.model_validate({**commands.find().model_dump(mode="json"), **change})
        with pytest.raises(ToolRequiresSetup, match="is not what the settings of lab declare") as raised:
            await commands.run(changed)
        assert raised.value.nothing_happened
        words = commands.find().model_dump(mode="json")
        words["handler"]["command"]["arguments"] = ["-c", "print('other')"]
        with pytest.raises(ToolRequiresSetup):
            await commands.run(Contract.model_validate(words))


async def test_a_tenant_runs_no_commands_of_another(lab: Lab) -> None:
    async with lab.open(python("print('ran')")) as commands:
        with pytest.raises(ToolRequiresSetup) as raised:
            await commands.run(tenant="other")
        assert raised.value.nothing_happened
        assert (await commands.run())["stdout"] == "ran\n"


async def test_a_document_that_is_not_the_pinned_one_runs_nothing(lab: Lab) -> None:
    async with lab.open(python("print('ran')")) as commands:
        contract = commands.find()
    service = write_commands(lab.folder, python("print('ran')"))
    (lab.folder / "lab.json").write_bytes(service.document.read_bytes() + b"\n")
    settings = Settings(environment="development", services=(service,))
    async with contextlib.AsyncExitStack() as stack:
        commands = Commands(build_command_driver(settings, stack))
        with pytest.raises(ToolRequiresSetup):
            await commands.run(contract)


async def test_without_sandboxes_a_command_requires_setup(lab: Lab) -> None:
    async with lab.open(python("pass"), sandboxes=SandboxSettings(folder=Path("/proc/none"))) as commands:
        with pytest.raises(ToolRequiresSetup, match="needs a sandbox, and this host has none") as raised:
            await commands.run()
        assert raised.value.nothing_happened
        assert "deputize sandboxes check" in raised.value.advice


@needs_gvisor
async def test_a_command_runs_on_the_stronger_of_what_its_manifest_and_the_settings_demand(lab: Lab) -> None:
    code = "import os; print(os.uname().release)"
    for declared, demanded in ((Backend.GVISOR, Backend.NAMESPACES), (Backend.NAMESPACES, Backend.GVISOR)):
        command = python(code, sandbox={"backend": declared})
        sandboxes = SandboxSettings.model_validate({"folder": lab.folder / "sandboxes", "backend": demanded})
        async with lab.open(command, sandboxes=sandboxes) as commands:
            assert (await commands.run())["stdout"] == "4.4.0\n", declared


async def test_a_rule_demands_more_than_the_manifest_and_never_less(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = {Backend.GVISOR: "gVisor (runsc) is not installed"}
    monkeypatch.setattr(client, "find_problem", lambda _, backend: problems.get(backend))
    weak, strong = (BackendDemand(rule=f"needs-{each}", where="a.cedar:1", reason="", backend=each) for each in Backend)
    async with lab.open(
        python("pass"), make_command("own", "-S", "-c", "pass", sandbox={"backend": "gvisor"})
    ) as commands:
        await commands.run(demands=(weak,))
        with pytest.raises(ToolRequiresSetup, match=r"on gvisor, as needs-gvisor \(a.cedar:1\) demands") as raised:
            await commands.run(demands=(weak, strong))
        assert raised.value.nothing_happened
        with pytest.raises(ToolRequiresSetup, match="runsc"):
            await commands.run(commands.find("own"), demands=(weak,))


async def test_a_command_whose_backend_is_missing_requires_setup(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = {Backend.GVISOR: "gVisor (runsc) is not installed"}
    monkeypatch.setattr(client, "find_problem", lambda _, backend: problems.get(backend))
    async with lab.open(python("pass", sandbox={"backend": "gvisor"})) as commands:
        with pytest.raises(ToolRequiresSetup, match="runsc"):
            await commands.run()
