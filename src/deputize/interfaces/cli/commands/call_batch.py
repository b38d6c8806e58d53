"""Perform `deputize call --batch`: make the calls of a file in one request."""

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from deputize.interfaces.cli.local.standard_input import read_standard_input
from deputize.interfaces.cli.render.output import (
    EXIT_FAILED,
    EXIT_PENDING,
    CommandExit,
    exit_with_error,
    format_json,
    printer,
)

if TYPE_CHECKING:
    from deputize.interfaces.cli.client.rest_client import GatewayClient


def read_calls(source: str) -> list[Any]:
    """Read the calls of a batch from a JSON array, or from lines with one JSON object each."""
    try:
        text = read_standard_input("--batch") if source == "-" else Path(source).read_text(encoding="utf-8")
    except OSError as error:
        exit_with_error(f"Cannot read {source}: {error.strerror}.")
    except UnicodeDecodeError:
        exit_with_error(f"{source} is not UTF-8 text: convert it to UTF-8.")
    try:
        if text.lstrip().startswith("["):
            calls: list[Any] = orjson.loads(text)
            return calls
        return [orjson.loads(line) for line in text.splitlines() if line.strip()]
    except orjson.JSONDecodeError as error:
        exit_with_error(f"{source} is neither a JSON array nor one JSON object a line: {error}.")


def send_batch(gateway: "GatewayClient", calls: list[Any], on_failure: str, *, json: bool) -> None:
    """Send several calls, each with a key, and print their results in order, one line each."""
    for each in calls:
        if isinstance(each, dict) and not each.get("dry_run"):
            each.setdefault("idempotency_key", str(uuid.uuid4()))
    answer = gateway.post("/v1/calls/batch", {"calls": calls, "on_failure": on_failure})
    envelopes = [each["envelope"] for each in answer.value["results"]]
    if json:
        printer.json(answer.value)
    for index, envelope in enumerate(envelopes):
        printer.line(_format_batch_line(index, calls[index]["tool"], envelope))
    if any(each.get("is_error", True) for each in envelopes):
        raise CommandExit(EXIT_FAILED)
    if any(each.get("approval") for each in envelopes):
        raise CommandExit(EXIT_PENDING)


def _format_batch_line(index: int, tool: str, envelope: dict[str, Any]) -> str:
    if "result" in envelope:
        text = format_json(envelope["result"])
    else:
        text = str(envelope.get("detail") or f"call {envelope.get('call_id')}")
    return f"{index}  {tool}  {envelope.get('state', 'failed')}  {text}"
