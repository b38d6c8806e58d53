"""Run commands that an operator names, each call in a sandbox of its own.

The pinned manifests of the settings say which programs run, with which folders, hosts and limits; a registered contract
that says anything else runs nothing. Who ended the program decides the outcome, never its exit code alone. What was
killed midway has an unknown outcome, unless the sandbox let it change nothing outside.
"""

import asyncio
import base64
import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson

from deputize.core.bounded_dict import BoundedDict
from deputize.core.contract.command import DEFAULT_OUTPUT_BYTES, Command, CommandFiles, split_argument
from deputize.core.contract.contract import Contract, MutationClass, ResourceLimits
from deputize.core.contract.safety_floor import list_weakenings
from deputize.core.contract.tools import CommandTool, ToolContext
from deputize.core.errors import (
    EgressDenied,
    OutcomeUnknown,
    OutOfMemory,
    Problem,
    ProgramCrashed,
    ResourceLimitExceeded,
    ResultInvalid,
    SandboxFailed,
    SemanticViolation,
    ToolConflict,
    ToolFailed,
    ToolPrecondition,
    ToolRequiresSetup,
    ToolTimeout,
)
from deputize.core.sensitive.text import redact_error_text
from deputize.execute.egress_proxy import PROXY_ENVIRONMENT, PROXY_PORT, EgressProxy
from deputize.execute.guarded_paths import GuardedPaths, UnguardedFolder
from deputize.execute.shared_folders import FolderRefusal, SharedFolders
from deputize.sandboxes.client import RunningSandbox, SandboxClient, SandboxResult, SandboxUnavailable
from deputize.sandboxes.port import (
    MAX_REQUEST_BYTES,
    Backend,
    Ending,
    ResultFolder,
    SandboxEnd,
    SandboxFolder,
    SandboxLimits,
    SandboxSpec,
    choose_stronger,
)
from deputize.sandboxes.scratch import open_scratch

_MAX_ERROR_LENGTH: Final = 2_000
_MAX_WORDS_LENGTH: Final = 300
_MOST_CONNECTIONS: Final = 50
_MOST_COMPARISONS: Final = 1_000
# What a contract must have as the settings do.
_ISOLATION_FIELDS: Final = ("handler", "network", "limits", "sandbox")
# How often the folder of files is measured while the program runs.
_MEASURE_SECONDS: Final = 0.1
_UNITS: Final = {"Mi": 1_048_576, "Gi": 1_073_741_824}
_SIGNAL_BASE: Final = 128
_ADVICE_SANDBOX: Final = (
    "The operator must run deputize sandboxes check on the host of the gateway, which says what to change."
)


class CommandDriver:
    """The driver for commands. `declared` are the contracts of pinned manifests by tenant and service and by target.

    `private_hosts` are, by tenant and service, the hosts that may be in a private network.
    """

    def __init__(
        self, declared: Mapping[tuple[str, str], Mapping[str, Contract]], sandboxes: SandboxClient,
        folders: SharedFolders, private_hosts: Mapping[tuple[str, str], frozenset[str]],
    ) -> None:  # fmt: skip
        self._declared = declared
        self._sandboxes = sandboxes
        self._comparisons: BoundedDict[tuple[str, str], bool] = BoundedDict(_MOST_COMPARISONS)
        self.folders = folders
        self._private_hosts = private_hosts

    async def aclose(self) -> None:
        """Let the supervisor of sandboxes end, if no other gateway uses it."""
        await self._sandboxes.aclose()

    def find_tool(self, contract: Contract) -> CommandTool:
        """Return the command that a contract names."""
        if contract.handler.command is None:
            raise ToolRequiresSetup(
                f"{contract.full_name} {contract.version} does not say which command it is", nothing_happened=True
            )
        service = contract.handler.target.partition("/")[0]
        return CommandTool(contract=contract, service=service, command=contract.handler.command)

    async def run(
        self, tool: CommandTool, arguments: dict[str, Any], context: ToolContext | None, seconds: float
    ) -> dict[str, Any]:
        """Run the command to its end and return what it wrote, or raise the Problem that it ended in."""
        assert context is not None, "a call of a command always has a context"
        self._require_declared(tool, context.tenant)
        await asyncio.to_thread(self._require_folders, tool)
        words = build_arguments(tool.command, arguments)
        stdin = _encode_input(tool.command, arguments)
        call = _Call(tool=tool, private_hosts=self._private_hosts.get((context.tenant, tool.service), frozenset()))
        try:
            demanded = _find_backend(tool.contract, context)
            await self._sandboxes.connect(demanded)
            backend = choose_stronger(self._sandboxes.backend, demanded)
            async with contextlib.AsyncExitStack() as stack:
                folder = None
                if tool.command.files is not None and backend is Backend.GVISOR:
                    # What a program on gVisor holds in memory is seen by nothing else.
                    folder = await stack.enter_async_context(open_scratch())
                spec = _build_spec(tool, words, folder, seconds, backend)
                guarded = await asyncio.to_thread(GuardedPaths, spec.folders)
                spec = replace(spec, folders=(*spec.folders, *guarded.read_only))
                stack.push_async_callback(asyncio.to_thread, guarded.report, tool.contract.full_name)
                if len(spec.to_json()) >= MAX_REQUEST_BYTES:
                    raise SemanticViolation("the arguments make a command that is too long: shorten them")
                result, files = await self._run_sandbox(call, spec, stdin, folder)
            call.require_good_end(result)
            return _build_result(call, result, files)
        except UnguardedFolder as error:
            raise ToolRequiresSetup(
                f"{tool.contract.full_name} was not run: {error}",
                advice=f"In the manifest of {tool.service}, the operator must change that, and import it again.",
                nothing_happened=True,
            ) from error
        except SandboxUnavailable as error:
            demand = next((each for each in context.backend_demands if each.backend == demanded), None)
            by_rule = f" on {demanded}, as {demand.rule} ({demand.where}) demands" if demand is not None else ""
            raise ToolRequiresSetup(
                f"{tool.contract.full_name} needs a sandbox{by_rule}, and this host has none: {error}",
                advice=_ADVICE_SANDBOX,
                nothing_happened=True,
            ) from error

    async def _run_sandbox(
        self, call: "_Call", spec: SandboxSpec, stdin: bytes, folder: Path | None
    ) -> tuple[SandboxResult, list[dict[str, Any]] | None]:
        """Run a program to its end, and read the files that it left; more than it may leave are too much output."""
        command = call.tool.command
        async with contextlib.AsyncExitStack() as stack:
            sandbox = await stack.enter_async_context(contextlib.aclosing(await self._sandboxes.start(spec)))
            if sandbox.listener is not None:
                targets = frozenset(_list_targets(call.tool.contract))
                private = frozenset(each for each in targets if each.lower() in call.private_hosts)
                proxy = EgressProxy(targets - private, call.note_connection, private_hosts=private)
                stack.push_async_callback(proxy.aclose)
                proxy.start(sandbox.listener)
            if folder is not None and command.files is not None:
                watch = asyncio.get_running_loop().create_task(_watch_files(sandbox, folder, command.files))
                stack.callback(watch.cancel)
            result = await sandbox.finish(stdin, max_output_bytes=command.output_bytes or DEFAULT_OUTPUT_BYTES)
            folder = folder or sandbox.result_folder
            if command.files is None or folder is None or result.end.ending not in (Ending.EXIT, Ending.CRASH):
                return result, None
            files = await asyncio.to_thread(_read_files, folder, command.files)
            return (replace(result, end=replace(result.end, ending=Ending.OUTPUT)) if files is None else result), files

    def _require_declared(self, tool: CommandTool, tenant: str) -> None:
        """Require that the settings declare exactly this command, and what it is given."""
        contract = tool.contract
        declared = self._declared.get((tenant, tool.service), {}).get(contract.handler.target)
        if declared is None or not self._is_as_strict(contract, declared):
            raise ToolRequiresSetup(
                f"{contract.full_name} {contract.version} is not what the settings of {tool.service} declare",
                details={"service": tool.service, "setting": "services"},
                advice=f"Call the newest version. If this is it, the operator must compare {tool.service} in "
                "[[services]] with its document, and restart every gateway and worker with the same settings.",
                nothing_happened=True,
            )

    def _is_as_strict(self, contract: Contract, declared: Contract) -> bool:
        """Tell whether a contract runs the same as the declared one, under rules that are not weaker."""
        key = (contract.digest, declared.digest)
        result = self._comparisons.get(key)
        if result is None:
            is_same = all(getattr(contract, each) == getattr(declared, each) for each in _ISOLATION_FIELDS)
            result = is_same and not list_weakenings(contract, declared)
            self._comparisons.put(key, result)
        return result

    def _require_folders(self, tool: CommandTool) -> None:
        for each in tool.command.folders or ():
            try:
                self.folders.require_shareable(each.path, is_written=bool(each.write))
            except FolderRefusal as refusal:
                raise ToolRequiresSetup(
                    f"{tool.contract.full_name} was not run: its folder {each.path} is not shown to it, because "
                    f"{refusal.reason}",
                    advice=f"In the manifest of {tool.service}, the operator must {refusal.todo}, and import it again.",
                    nothing_happened=True,
                ) from refusal


@dataclass(kw_only=True, slots=True)
class _Call:
    """One run of a command, and what it connected to."""

    tool: CommandTool
    private_hosts: frozenset[str] = frozenset()
    connections: dict[tuple[str, str | None], None] = field(default_factory=dict)

    def note_connection(self, target: str, reason: str | None) -> None:
        if len(self.connections) < _MOST_CONNECTIONS:
            self.connections[target, reason] = None

    @property
    def could_act(self) -> bool:
        """True if the sandbox let the program change anything outside."""
        return self.tool.command.changes_folders or bool(_list_targets(self.tool.contract))

    def require_good_end(self, result: SandboxResult) -> None:
        """Raise the Problem of a program that did not end well."""
        end, name = result.end, self.tool.contract.full_name
        if not end.has_started:
            raise self._explain_refusal(result)
        match end.ending:
            case Ending.EXIT:
                self._judge_exit_code(result)
            case Ending.DEADLINE:
                raise self.settle(ToolTimeout, f"{name} was ended, because its time was over", result)
            case Ending.MEMORY:
                memory = self.tool.contract.limits.memory
                raise self.settle(OutOfMemory, f"{name} needed more memory than its {memory}", result)
            case Ending.PROCESSES:
                raise self.settle(ResourceLimitExceeded, f"{name} started more processes than it may", result)
            case Ending.OUTPUT:
                raise self.settle(ResourceLimitExceeded, f"{name} wrote more output or files than it may", result)
            case Ending.CRASH:
                raise self.settle(ProgramCrashed, f"{name} crashed", result)
            case _:
                raise self.settle(SandboxFailed, f"the sandbox of {name} ended before its program did", result)

    def _judge_exit_code(self, result: SandboxResult) -> None:
        command, code = self.tool.command, result.end.exit_code
        meaning = (command.exit_codes or {}).get(str(code), "ok" if code == 0 else "failed")
        if meaning == "ok":
            return
        name, refused = self.tool.contract.full_name, [target for target, reason in self.connections if reason]
        details = self._describe(result)
        words = result.stderr.decode(errors="replace").strip() or result.stdout.decode(errors="replace").strip()
        # Redacted before it is cut: what remains of a secret may not look like one.
        text = redact_error_text(words[-_MAX_ERROR_LENGTH:])[-_MAX_WORDS_LENGTH:]
        message = f"{name} ended with {code}" + (f": {text}" if text else "")
        if refused and meaning == "failed":
            raise EgressDenied(
                f"{name} may not connect to {refused[0]}, and ended with {code}",
                details=details,
                advice="If the host is right, add it to network.allowed_domains of its manifest, and import it again.",
            )
        kinds: dict[str, type[Problem]] = {"precondition": ToolPrecondition, "conflict": ToolConflict}
        raise kinds.get(meaning, ToolFailed)(message, details=details)

    def settle(self, kind: type[Problem], message: str, result: SandboxResult) -> Problem:
        """Build the problem of a program that was ended, whose effect is unknown if it could have one."""
        details, is_read = self._describe(result), self.tool.contract.mutation_class is MutationClass.READ
        problem = kind(message, details=details, nothing_happened=not self.could_act and not is_read)
        if is_read or not self.could_act or problem.spec.retryable:
            # The lifecycle repeats what is safe to repeat, and calls the rest unknown.
            return problem
        unknown = OutcomeUnknown(f"{message}; it is unknown whether it acted", details={"cause": problem.spec.slug})
        unknown.__cause__ = problem
        return unknown

    def _explain_refusal(self, result: SandboxResult) -> Problem:
        """Explain why the program was not started."""
        name, note = self.tool.contract.full_name, result.end.note
        if "pinned" in note:
            return ToolRequiresSetup(
                f"{name} was not run: its program changed since it was imported",
                advice=f"The operator must review the program, and import the manifest of {self.tool.service} again.",
                nothing_happened=True,
            )
        words = "; ".join(each for each in (note, result.stderr.decode(errors="replace").strip()[-300:]) if each)
        return SandboxFailed(
            f"the sandbox of {name} was not started: {redact_error_text(words)}",
            advice=_ADVICE_SANDBOX,
            nothing_happened=True,
        )

    def _describe(self, result: SandboxResult) -> dict[str, Any]:
        return {**_describe_end(result.end), **self.describe_connections()}

    def describe_connections(self) -> dict[str, Any]:
        """Describe what the program connected to, or why not; nothing if it could not connect."""
        if not _list_targets(self.tool.contract):
            return {}
        rows = [{"target": target, **({"refused": reason} if reason else {})} for target, reason in self.connections]
        return {"connections": rows}


def build_arguments(command: Command, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Build the arguments of the program; one whose value is not given is left out."""
    words = []
    for each in command.arguments:
        prefix, name = split_argument(each)
        if name is None:
            words.append(prefix)
        elif arguments.get(name) is not None:
            value = _format_value(name, arguments[name])
            if not prefix and value.startswith("-"):
                raise SemanticViolation(
                    f"{name} begins with a hyphen, so the program would take it for an option: write it in another way",
                    details={"argument": name},
                )
            words.append(prefix + value)
    return tuple(words)


def _format_value(name: str, value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if "\0" in text or _has_surrogates(text):
        raise SemanticViolation(f"{name} has characters that no argument of a program has", details={"argument": name})
    return text


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _encode_input(command: Command, arguments: Mapping[str, Any]) -> bytes:
    value = None if command.stdin is None else arguments.get(command.stdin)
    if value is None:
        return b""
    return value.encode(errors="replace") if isinstance(value, str) else orjson.dumps(value)


def _build_spec(
    tool: CommandTool, words: tuple[str, ...], host_folder: Path | None, seconds: float, backend: Backend
) -> SandboxSpec:
    """Build the sandbox of a call; the program leaves its files in a folder of the host, or else in memory."""
    command, has_hosts = tool.command, bool(_list_targets(tool.contract))
    folders = [SandboxFolder(path=each.path, is_writable=bool(each.write)) for each in command.folders or ()]
    files, result_folder = command.files, None
    if files is not None and host_folder is not None:
        folders.append(SandboxFolder(path=files.folder, source=str(host_folder), is_writable=True))
    elif files is not None:
        result_folder = ResultFolder(path=files.folder, size_bytes=_compute_room(files))
    return SandboxSpec(
        command=(command.program, *words),
        seconds=seconds,
        program_sha256=command.sha256,
        folders=tuple(folders),
        working_folder=command.working_folder or "/tmp",  # its own
        environment={**(PROXY_ENVIRONMENT if has_hosts else {}), **(command.environment or {})},
        proxy_port=PROXY_PORT if has_hosts else None,
        limits=read_limits(tool.contract.limits),
        backend=backend,
        result_folder=result_folder,
    )


def _find_backend(contract: Contract, context: ToolContext) -> Backend:
    """Find the weakest backend that the contract and the policies accept for a call.

    No command runs on an interpreter, which is weaker than all of them.
    """
    declared = None if contract.sandbox is None else contract.sandbox.backend
    accepted = Backend.GVISOR if declared == "gvisor" else Backend.NAMESPACES
    return choose_stronger(accepted, *(Backend(each.backend) for each in context.backend_demands))


def read_limits(limits: ResourceLimits) -> SandboxLimits:
    """Read the limits of a contract as those of a sandbox."""
    cpus = int(limits.cpu[:-1]) / 1_000 if limits.cpu.endswith("m") else float(limits.cpu)
    return SandboxLimits(
        memory_bytes=_read_size(limits.memory),
        cpus=cpus,
        storage_bytes=_read_size(limits.ephemeral_storage),
        processes=limits.processes or SandboxLimits().processes,
    )


def _read_size(text: str) -> int:
    return int(text[:-2]) * _UNITS[text[-2:]]


def _list_targets(contract: Contract) -> list[str]:
    """List the hosts and ports that a program may connect to."""
    policy = contract.network
    if policy.deny_all_egress:
        return []
    return [f"{host}:{port}" for host in policy.allowed_domains for port in policy.allowed_ports]


async def _watch_files(sandbox: RunningSandbox, folder: Path, bounds: CommandFiles) -> None:
    """End a program on gVisor that leaves more than it may: what it writes is on the disk of the host."""
    while True:
        await asyncio.sleep(_MEASURE_SECONDS)
        if await asyncio.to_thread(_exceeds, folder, bounds):
            sandbox.kill(Ending.OUTPUT)


def _exceeds(folder: Path, bounds: CommandFiles) -> bool:
    """Tell whether there is more than may be. What cannot be looked at may be anything."""
    count = total = 0
    try:
        if os.statvfs(folder).f_bfree == 0:
            # What found no room is missing.
            return True
        for _, facts in _walk(folder):
            count, total = count + 1, total + max(facts.st_size, facts.st_blocks * 512)
            if count > bounds.count or facts.st_size > bounds.bytes or total > _compute_room(bounds):
                return True
    except OSError:
        return True
    return False


def _walk(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Walk over what is in a folder and below it, at any depth; what is removed meanwhile is left out."""
    pending = [str(folder)]
    while pending:
        with contextlib.suppress(FileNotFoundError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                try:
                    facts = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield entry.path, facts
                if stat.S_ISDIR(facts.st_mode):
                    pending.append(entry.path)


def _build_result(call: _Call, result: SandboxResult, files: list[dict[str, Any]] | None) -> dict[str, Any]:
    command = call.tool.command
    built: dict[str, Any] = {"exit_code": result.end.exit_code}
    if command.output == "json":
        try:
            built["output"] = orjson.loads(result.stdout)
        except orjson.JSONDecodeError as error:
            raise ResultInvalid(f"{call.tool.contract.full_name} wrote no JSON: {error}") from error
    else:
        built["stdout"] = result.stdout.decode(errors="replace")
    built["stderr"] = result.stderr.decode(errors="replace")
    if files is not None:
        built["files"] = files
    return {**built, **call.describe_connections()}


def _compute_room(bounds: CommandFiles) -> int:
    """Compute the bytes that the files take at most: each ends in a page of its own."""
    return bounds.bytes + 4_096 * bounds.count


def _read_files(folder: Path, bounds: CommandFiles) -> list[dict[str, Any]] | None:
    """Read the regular files that a program left, None if they are more than may be; links lead nowhere here."""
    if _exceeds(folder, bounds):
        return None
    files = []
    for path, facts in sorted(_walk(folder)):
        if stat.S_ISREG(facts.st_mode):
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
                content = stream.read()
            name = os.fsencode(os.path.relpath(path, folder)).decode(errors="replace")
            entry: dict[str, Any] = {"path": name, "bytes": len(content)}
            try:
                entry["text"] = content.decode()
            except UnicodeDecodeError:
                entry["base64"] = base64.b64encode(content).decode()
            files.append(entry)
    return files


def _describe_end(end: SandboxEnd) -> dict[str, Any]:
    """Describe how a program ended, with the signal behind its exit code if it crashed."""
    described: dict[str, Any] = {"ended_by": end.ending.value}
    if end.exit_code is not None:
        described["exit_code"] = end.exit_code
    if end.ending is Ending.CRASH and end.exit_code is not None:
        described["signal"] = end.exit_code - _SIGNAL_BASE
    return described
