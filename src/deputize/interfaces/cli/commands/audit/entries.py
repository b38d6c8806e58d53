"""Define `deputize audit`: search, show, tail and export audit entries."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deputize.core.config_error import ConfigError
from deputize.core.entry_kinds import DECISION_NAMES, ENTRY_KINDS
from deputize.core.states import State
from deputize.interfaces.cli.client.parquet_file import ParquetFile, require_parquet
from deputize.interfaces.cli.client.target import Token, Url, find_gateway
from deputize.interfaces.cli.client.times import parse_time
from deputize.interfaces.cli.commands import erase
from deputize.interfaces.cli.commands.audit import holds
from deputize.interfaces.cli.commands.audit.log import add_log_commands
from deputize.interfaces.cli.render.audit import describe_entry, format_entry_line, list_entry_cells
from deputize.interfaces.cli.render.output import EXIT_FAILED, Json, exit_with_error, printer

if TYPE_CHECKING:
    from deputize.interfaces.cli.client.rest_client import GatewayClient

group = typer.Typer(no_args_is_help=True, help="Search, show, follow, export, verify, hold and erase audit data.")

_PAUSE_SECONDS = 1.0
_MAX_TRIES = 30
_MAX_PAGE = 200

Since = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help="Since this time: 2h, 7d or 2026-11-16T08:00:00Z; without a zone it is UTC.",
    ),
]
Until = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Before this time, written like --from.")]
CallerName = Annotated[str | None, typer.Option(metavar="NAME", help="The user: a name, or a pseudonym.")]
AgentName = Annotated[str | None, typer.Option(metavar="NAME", help="An agent that acted: a name, or a pseudonym.")]
ToolName = Annotated[str | None, typer.Option(metavar="NAME", help="The tool's full name.")]
DecisionText = Annotated[str | None, typer.Option(metavar="DECISION", help="allow, ask or deny.")]
RuleName = Annotated[str | None, typer.Option(metavar="NAME", help="A rule that decided.")]
OutcomeText = Annotated[str | None, typer.Option(metavar="STATE", help="The state after the entry, such as failed.")]
ResourceName = Annotated[str | None, typer.Option(metavar="NAME", help="A resource that the tool declares.")]
SessionName = Annotated[str | None, typer.Option(metavar="ID", help="The caller's session.")]
TraceId = Annotated[str | None, typer.Option(metavar="ID", help="The trace id.")]
KindName = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="read, refusal, intent (before a write), outcome (after it), command (administration), decision (of an "
        "approver) or yield (back to the queue).",
    ),
]


@group.command(epilog="Example: deputize audit search --decision deny --from 7d")
def search(
    since: Since = None,
    until: Until = None,
    caller: CallerName = None,
    agent: AgentName = None,
    tool: ToolName = None,
    decision: DecisionText = None,
    rule: RuleName = None,
    outcome: OutcomeText = None,
    resource: ResourceName = None,
    session: SessionName = None,
    trace: TraceId = None,
    kind: KindName = None,
    limit: Annotated[int, typer.Option(min=1, max=_MAX_PAGE, help="Show at most this many, newest first.")] = 50,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Show only entries older than this one.")] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Search audit entries, newest first: your own, or the tenant's as an administrator or auditor.

    Every search is audited.
    """
    query = _build_query(locals())
    answer = find_gateway(url, token).get("/v1/audit", limit=limit, before=before, **query)
    if json:
        printer.json(answer)
        return
    if answer["entries"]:
        rows = [list_entry_cells(each) for each in answer["entries"]]
        printer.table(("time", "caller", "tool or command", "decision", "outcome", "entry"), rows)
    elif answer["is_complete"]:
        printer.line("No audit entry matches.")
    if answer["detail"]:
        printer.note(answer["detail"])
    if answer["next_before"]:
        printer.note(f"Older entries: repeat the command with --before {answer['next_before']}")


@group.command(epilog="Example: deputize audit show 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def show(
    entry_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the entry, as printed by deputize audit search.")
    ],
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Show one audit entry: who, what, decided by which rules, and how it ended."""
    from urllib.parse import quote

    value = find_gateway(url, token).get(f"/v1/audit/{quote(entry_id, safe='')}")
    if json:
        printer.json(value)
        return
    for line in describe_entry(value):
        printer.line(line)


@group.command(epilog="Example: deputize audit tail --tool crm.delete_user")
def tail(
    caller: CallerName = None,
    agent: AgentName = None,
    tool: ToolName = None,
    decision: DecisionText = None,
    rule: RuleName = None,
    outcome: OutcomeText = None,
    resource: ResourceName = None,
    session: SessionName = None,
    trace: TraceId = None,
    kind: KindName = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Print audit entries as they are written, until Ctrl-C."""
    gateway = find_gateway(url, token)
    query = _build_query(locals())
    with _StopOnInterrupt() as stop:
        for each in _stream_entries(gateway, query):
            with stop.hold():
                if json:
                    printer.json(each)
                else:
                    printer.line(format_entry_line(each))


@group.command(epilog="Example: deputize audit export --from 30d --format csv --output audit.csv")
def export(
    since: Since = None,
    until: Until = None,
    caller: CallerName = None,
    agent: AgentName = None,
    tool: ToolName = None,
    decision: DecisionText = None,
    rule: RuleName = None,
    outcome: OutcomeText = None,
    resource: ResourceName = None,
    session: SessionName = None,
    trace: TraceId = None,
    kind: KindName = None,
    file_format: Annotated[
        Literal["jsonl", "csv", "parquet"],
        typer.Option(
            "--format", metavar="FORMAT", help="jsonl, csv, or parquet, which needs deputize[parquet] and --output."
        ),
    ] = "jsonl",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to this file, which appears when it is complete.")
    ] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Export audit entries, newest first, to stdout or a file. Progress is shown on stderr."""
    query = _build_query(locals())
    is_parquet = _check_parquet(file_format, output)
    sent_format = "jsonl" if is_parquet else file_format
    chunks = find_gateway(url, token).stream_bytes("/v1/audit/export", format=sent_format, **query)
    if output is None:
        count = _copy_chunks(chunks, sys.stdout.buffer, is_csv=file_format == "csv")
    else:
        partial_file = output.with_name(f"{output.name}.part")
        try:
            with partial_file.open("wb") as file, _open_sink(file, is_parquet=is_parquet) as sink:
                count = _copy_chunks(chunks, sink, is_csv=file_format == "csv")
            partial_file.replace(output)
        except OSError as error:
            raise ConfigError(f"{output} cannot be written ({error.strerror}): choose another --output.") from None
        finally:
            partial_file.unlink(missing_ok=True)
    entry_count = max(0, count - (file_format == "csv"))
    if json and output is not None:
        printer.json({"entries": entry_count, "output": str(output)})
    noun = "entry" if entry_count == 1 else "entries"
    printer.note(f"{entry_count:,} {noun}{'' if output is None else f' in {output}'}")


def _check_parquet(file_format: str, output: Path | None) -> bool:
    """Tell whether Parquet is asked for; exit before the export if it cannot be written."""
    if file_format != "parquet":
        return False
    require_parquet()
    if output is None:
        exit_with_error("Parquet is written to a file: name it with --output FILE.")
    return True


@contextlib.contextmanager
def _open_sink(file: Any, *, is_parquet: bool) -> Iterator[Any]:
    """Open what takes the chunks: the file itself, or a Parquet file in it, which is closed if all went well."""
    if not is_parquet:
        yield file
        return
    parquet_file = ParquetFile(file)
    yield parquet_file
    parquet_file.close()


def _copy_chunks(chunks: Iterator[bytes], file: Any, *, is_csv: bool) -> int:
    count, is_quoted = 0, False
    is_shown = sys.stderr.isatty() and not printer.as_json
    for chunk in chunks:
        file.write(chunk)
        if is_csv:
            # A line break inside of quotes belongs to a value.
            parts = chunk.split(b'"')
            count += sum(part.count(b"\n") for part in parts[is_quoted::2])
            is_quoted ^= len(parts) % 2 == 0
        else:
            count += chunk.count(b"\n")
        if is_shown:
            sys.stderr.write(f"\r{count:,} entries")
            sys.stderr.flush()
    file.flush()
    if is_shown:
        sys.stderr.write("\r\x1b[K")
    return count


def _build_query(options: dict[str, Any]) -> dict[str, str]:
    names = ("caller", "agent", "tool", "decision", "rule", "outcome", "resource", "session", "trace", "kind")
    query = {name: str(options[name]) for name in names if options.get(name)}
    states = tuple(each.value for each in State)
    for name, values in (("decision", DECISION_NAMES), ("kind", ENTRY_KINDS), ("outcome", states)):
        if name in query and query[name] not in values:
            exit_with_error(f"--{name} {query[name]} is unknown: use {', '.join(values)}.")
    for option, name in (("since", "from"), ("until", "to")):
        if options.get(option):
            query[name] = parse_time(str(options[option]), name)
    return query


def _stream_entries(gateway: "GatewayClient", query: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield entries, reconnect after a break, and leave out what came twice."""
    import time
    from urllib.parse import urlencode

    path = f"/v1/audit/tail?{urlencode(query)}" if query else "/v1/audit/tail"
    last_id, tries, recent = "", 0, dict[str, None]()
    is_open = False
    while tries < _MAX_TRIES:
        try:
            for event_id, name, value in gateway.stream_events(path, last_id):
                is_open, tries = True, 0
                if name == "error":
                    exit_with_error(
                        str(value.get("detail") or "The gateway ended the tail: start it again."), EXIT_FAILED
                    )
                if name == "gap":
                    printer.warn("More entries than a tail can show: some were left out. Find them with audit search.")
                    continue
                last_id = event_id
                if event_id not in recent:
                    recent[event_id] = None
                    yield value
                while len(recent) > 5000:
                    del recent[next(iter(recent))]
            is_open = True
        except ConfigError:
            # Unreachable at first is a wrong address; later, the gateway is probably restarting.
            if not is_open:
                raise
        tries += 1
        time.sleep(_PAUSE_SECONDS)
    raise ConfigError("The gateway stopped answering: start it, then start the tail again.")


class _StopOnInterrupt:
    """Ends the block quietly at Ctrl-C, but never in the middle of a line."""

    def __init__(self) -> None:
        self._is_held = False
        self._is_due = False
        self._previous: Any = None

    def __enter__(self) -> "_StopOnInterrupt":
        self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        signal.signal(signal.SIGINT, signal.SIG_IGN if kind is KeyboardInterrupt else self._previous)
        return kind is KeyboardInterrupt

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        self._is_due = True
        if not self._is_held:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the interruption back while the block runs."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._is_due:
            raise KeyboardInterrupt


add_log_commands(group)
group.command("erase", epilog="Example: deputize audit erase mallory")(erase.user)
group.add_typer(holds.group, name="hold", epilog="Example: deputize audit hold list")
