"""Define `deputize audit verify`, `prove` and `anchor`: what anyone can check of the audit by its log."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.client.receipts import load_receipt
from deputize.interfaces.cli.client.target import Token, Url, build_call_path, find_gateway
from deputize.interfaces.cli.render.output import EXIT_FAILED, CommandExit, Json, printer

if TYPE_CHECKING:
    from deputize.interfaces.cli.client.log_client import LogClient
    from deputize.interfaces.cli.client.rest_client import GatewayClient
    from deputize.interfaces.cli.local.log_audit import LogVerdict, VerifierKey

LogKey = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="KEY", help="The key of the log, or a file with its keys. Default: those of the last time."
    ),
]
StateFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Keep the checkpoint that was verified in this file.")
]
OutputFile = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it to this file.")]
_SHOWN_ENTRIES = 20


def add_log_commands(group: typer.Typer) -> None:
    """Add the commands about the log to the group of the audit."""
    group.command(epilog="Example: deputize audit verify --key log.key")(verify)
    group.command(epilog="Example: deputize audit prove 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b -o entry.receipt")(prove)
    group.command(epilog="Example: deputize audit anchor --check last-month.checkpoint")(anchor)


def verify(key: LogKey = None, state: StateFile = None, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Verify the whole log as an administrator: every entry, signature and hash. Exits with 1 at the first fault."""
    from deputize.interfaces.cli.local.kept_checkpoints import (
        KeptCheckpoint,
        load_kept_checkpoint,
        locate_kept_checkpoint,
        save_kept_checkpoint,
    )
    from deputize.interfaces.cli.local.log_audit import InvalidNote, LogAudit, load_checkpoint, load_keys

    gateway = find_gateway(url, token)
    with _open_log(gateway) as (log, tenant):
        file = state or locate_kept_checkpoint(gateway.url, tenant)
        kept_checkpoint = load_kept_checkpoint(file)
        gateway_keys = load_keys(log.read)
        keys = _choose_keys(key, kept_checkpoint.keys if kept_checkpoint else None, gateway_keys)
        try:
            note, newest = load_checkpoint(log.read, keys)
        except InvalidNote as error:
            _fail(f"NOT TRUSTED: the newest checkpoint cannot be verified: {error}.", json, reason=str(error))
        with printer.progress_bar(f"{newest.size:,} entries") as report_progress:
            audit = LogAudit(
                log.read,
                # Older checkpoints were signed by older keys; they say where a fault is, not whether there is one.
                [*keys, *(each for each in gateway_keys if each not in keys)],
                kept_checkpoint.checkpoint if kept_checkpoint else None,
                report_progress=report_progress,
            )
            verdict = audit.verify(newest)
    if verdict.is_trusted:
        save_kept_checkpoint(file, KeptCheckpoint(note=note.decode(), keys=keys))
    _print_verdict(verdict, json)


def prove(
    subject: Annotated[str, typer.Argument(metavar="ID", help="Id of an audit entry, or of a call: its newest entry.")],
    output: OutputFile = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Get the receipt of any audit entry that you may see: it proves offline what was recorded."""
    from urllib.parse import quote

    from deputize.interfaces.cli.client.refusal import GatewayRefusal

    gateway = find_gateway(url, token)
    try:
        answer = load_receipt(gateway, f"/v1/audit/{quote(subject, safe='')}/receipt")
    except GatewayRefusal as refusal:
        if refusal.slug != "audit-entry-not-found":
            raise
        answer = load_receipt(gateway, f"{build_call_path(subject)}/receipt")
    if output is not None:
        _write_file(output, answer["receipt"])
    if json:
        printer.json(answer)
    elif output is None:
        printer.line(answer["receipt"].rstrip("\n"))
    else:
        printer.success(f"The receipt is in {output}. Verify it anywhere: deputize verify {output} --key KEY")


def anchor(
    output: OutputFile = None,
    check: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare the log with a checkpoint that you kept.")
    ] = None,
    key: LogKey = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Print the log's signed checkpoint, to keep it outside the gateway, or compare the log with one that was kept."""
    from deputize.interfaces.cli.local.kept_checkpoints import load_kept_checkpoint, locate_kept_checkpoint
    from deputize.interfaces.cli.local.log_audit import (
        InvalidNote,
        InvalidProof,
        load_checkpoint,
        load_keys,
        read_checkpoint,
        verify_growth,
    )

    gateway = find_gateway(url, token)
    with _open_log(gateway) as (log, tenant):
        kept_checkpoint = load_kept_checkpoint(locate_kept_checkpoint(gateway.url, tenant))
        gateway_keys = load_keys(log.read)
        keys = _choose_keys(key, kept_checkpoint.keys if kept_checkpoint else None, gateway_keys)
        try:
            note, newest = load_checkpoint(log.read, keys)
            # One that was kept for long may be signed by a key that was replaced since.
            old = read_checkpoint(check, [*keys, *gateway_keys]) if check else None
            if old is not None:
                verify_growth(log.read, old, newest)
        except (InvalidNote, InvalidProof) as error:
            _fail(f"NOT TRUSTED: {error}.", json, reason=str(error))
    if output is not None:
        _write_file(output, note.decode())
    if json:
        old_size = None if old is None else old.size
        printer.json({"trusted": True, "log": newest.origin, "size": newest.size, "old_size": old_size})
    elif old is not None:
        growth = f"it has grown from {old.size:,} to {newest.size:,} entries, and what was there is unchanged"
        printer.line(f"TRUSTED: the log {newest.origin} continues {check}: {growth}.")
    elif output is None:
        printer.line(note.decode().rstrip("\n"))
    if output is not None and not json:
        printer.success(
            f"The checkpoint of {newest.size:,} entries is in {output}. Keep it where no one can change it."
        )
        printer.note(f"Compare the log with it later: deputize audit anchor --check {output}")


@contextlib.contextmanager
def _open_log(gateway: "GatewayClient") -> "Iterator[tuple[LogClient, str]]":
    from deputize.interfaces.cli.client.log_client import LogClient

    tenant: str = gateway.get("/v1/surface", limit=1)["scope"]["tenant"]
    log = LogClient(gateway, tenant)
    try:
        yield log, tenant
    finally:
        log.close()


def _choose_keys(
    key: str | None, kept_keys: "Sequence[VerifierKey] | None", gateway_keys: "Sequence[VerifierKey]"
) -> "list[VerifierKey]":
    """Choose whom to trust: the option, else the keys of the last time, else what the gateway says."""
    from deputize.interfaces.cli.local.receipt_check import read_log_keys

    if key is not None:
        return read_log_keys(key)
    if kept_keys:
        return list(kept_keys)
    printer.note("The gateway says what the log's key is. Better: --key with the key that its operator gave you.")
    return list(gateway_keys)


def _print_verdict(verdict: "LogVerdict", json: bool) -> None:
    fault = verdict.fault
    facts: dict[str, Any] = {"log": verdict.log, "size": verdict.size, "signed_at": verdict.signed_at}
    if fault is not None:
        place = f"entry {fault.first:,}" if fault.first == fault.last else f"entries {fault.first:,} to {fault.last:,}"
        id_text = f", id {verdict.entry_id}" if verdict.entry_id else ""
        time_text = f" It was signed at {verdict.signed_at}." if verdict.signed_at else ""
        text = f"NOT TRUSTED from entry {fault.first:,} on ({place}{id_text}): {fault.reason}.{time_text}"
        facts |= {"first": fault.first, "last": fault.last, "entry_id": verdict.entry_id, "reason": fault.reason}
        _fail(text, json, **facts)
    if verdict.unlogged_entries:
        count = len(verdict.unlogged_entries)
        id_lines = "".join(f"\n  {each}" for each in verdict.unlogged_entries[:_SHOWN_ENTRIES])
        reason = f"{count:,} audit entries are not in the log: no gateway wrote them, or the log was kept from them"
        text = (
            f"NOT TRUSTED: {reason}. The first are:{id_lines}\nThe {verdict.size:,} entries of the log are as signed."
        )
        _fail(text, json, **facts, reason=reason, unlogged_entries=verdict.unlogged_entries)
    if verdict.has_backlog:
        reason = (
            "entries from before the log are still queued for it, so those that are missing in it cannot be named: "
            "verify again when they are in it"
        )
        text = f"NOT COMPLETE: {reason}. The {verdict.size:,} entries of the log are as signed."
        _fail(text, json, **facts, reason=reason)
    if json:
        printer.json({"trusted": True, **facts, "expired": verdict.expired_count})
        return
    time_text = f", the last of them signed at {verdict.signed_at}" if verdict.signed_at else ""
    printer.line(f"TRUSTED: all {verdict.size:,} entries of the log {verdict.log} are as they were signed{time_text}.")
    if verdict.expired_count:
        count_text = "The first entry" if verdict.expired_count == 1 else f"The first {verdict.expired_count:,} entries"
        printer.line(f"{count_text} expired, as the log itself says: only their hashes are left, and were verified.")


def _fail(text: str, json: bool, **facts: Any) -> NoReturn:
    if json:
        printer.json({"trusted": False, **facts})
    else:
        for line in text.splitlines():
            printer.line(line)
    raise CommandExit(EXIT_FAILED)


def _write_file(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}): choose another --output.") from None
