"""Draw the trace of one call for the documentation: `python -m docs.trace_picture` writes `docs/images/trace.svg`.

The trace is one of the running product: an agent calls a tool of an MCP server through `deputize dev`, a person
approves the call, and the server refuses the first attempt. The gateway sends its spans to a collector; those of the
agent and of the server are measured here, as their own tracing would.
"""

import argparse
import gzip
import json
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from deputize.core.telemetry import Attribute
from tests.acceptance.cli.cli_process import PROGRAM, BackgroundCommand, make_project
from tests.support.mcp_servers.upstream import Upstream

DOCS = Path(__file__).parent
PICTURE = DOCS / "images" / "trace.svg"
_SETTINGS = """
[telemetry]
otlp_endpoint = "{collector}"

[[servers]]
name = "orders"
url = "{server}"
start_seconds = 60
"""
_COLORS = {"agent": "#8250df", "gateway": "#0969da", "server": "#1a7f37"}
_WIDTH, _LEFT, _BARS, _ROW, _TOP = 1080, 300, 640, 26, 62
_CODE = re.compile(r"code ([0-9A-Z]{4}-[0-9A-Z]{4})\b")
_ADDRESS = re.compile(r"http://[0-9.]+:\d+")


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnSpan:
    span_id: str
    parent_id: str
    name: str
    service: str
    start: float
    end: float
    note: str = ""


class BusyServer(Upstream):
    """An MCP server that refuses its first call for its rate, and records a span for each."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[DrawnSpan] = []

    def find_failure_status(self, request: dict[str, Any]) -> int:
        if request.get("method") != "tools/call":
            return 0
        status, start = (0 if self.spans else 429), time.time()
        time.sleep(0.15 if status else 0.4)
        self.spans.append(
            DrawnSpan(
                span_id=secrets.token_hex(8), parent_id=request["params"]["_meta"]["traceparent"].split("-")[2],
                name="cancel_order", service="server", start=start, end=time.time(),
                note="HTTP 429" if status else "done",
            )
        )  # fmt: skip
        return status


@contextmanager
def collect_spans() -> Iterator[tuple[str, list[DrawnSpan]]]:
    """Collect the spans that are sent by OTLP over HTTP; give the address and the list."""
    spans: list[DrawnSpan] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            spans.extend(_read_spans(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces", spans
    finally:
        server.shutdown()
        server.server_close()


def _read_spans(body: bytes) -> Iterator[DrawnSpan]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                facts = {each.key: each.value.string_value or str(each.value.int_value) for each in span.attributes}
                number, state = facts.get(Attribute.ATTEMPT), facts.get(Attribute.STATE, "")
                note = facts.get(Attribute.ERROR, state)
                yield DrawnSpan(
                    span_id=span.span_id.hex(), parent_id=span.parent_span_id.hex(),
                    name=span.name if number is None else f"{span.name} {number}", service="gateway",
                    start=span.start_time_unix_nano / 1e9, end=span.end_time_unix_nano / 1e9, note=note,
                )  # fmt: skip


def record_trace(folder: Path) -> list[DrawnSpan]:
    """Make the call of an agent, approve it, wait for its end, and return all spans of its trace."""
    server = BusyServer()
    server.start()
    try:
        with collect_spans() as (collector, spans):
            make_project(folder)
            with (folder / "deputize.toml").open("a") as file:
                file.write(_SETTINGS.format(collector=collector, server=server.url))
            with BackgroundCommand("dev", folder=folder) as gateway:
                match = _ADDRESS.search(gateway.wait_for_line("▶"))
                assert match is not None
                _run_deputize(folder, "servers", "test", "orders")
                agent_span = _call_as_agent(folder, match[0], gateway)
        return [agent_span, *spans, *server.spans]
    finally:
        server.stop()


def _call_as_agent(folder: Path, address: str, gateway: BackgroundCommand) -> DrawnSpan:
    trace_id, span_id, start = secrets.token_hex(16), secrets.token_hex(8), time.time()
    token = _run_deputize(folder, "token", "--user", "eva", "--agent", "orders-bot", "--scope", "orders:write").strip()
    headers = {
        "authorization": f"Bearer {token}", "content-type": "application/json", "idempotency-key": span_id,
        "traceparent": f"00-{trace_id}-{span_id}-01",
    }  # fmt: skip
    start = time.time()
    call = _request(f"{address}/v1/calls", headers, {"tool": "orders.cancel_order", "arguments": {"name": "Ana"}})
    match = _CODE.search(gateway.wait_for_line("⏸"))
    assert match is not None
    _run_deputize(folder, "approvals", "approve", "last", "--code", match[1])
    while call["state"] not in ("succeeded", "failed", "denied", "unknown"):
        time.sleep(0.05)
        call = _request(f"{address}/v1/calls/{call['call_id']}", headers)
    if call["state"] != "succeeded":
        raise RuntimeError(f"the call ended otherwise: {call}")
    return DrawnSpan(
        span_id=span_id, parent_id="", name="task", service="agent", start=start, end=time.time(), note="orders-bot"
    )


def _request(url: str, headers: dict[str, str], body: Any = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
        fields: dict[str, Any] = json.load(answer)
        return fields


def _run_deputize(folder: Path, *words: str) -> str:
    result = subprocess.run([PROGRAM, *words], cwd=folder, env={}, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"deputize {' '.join(words)}: {result.stdout}{result.stderr}")
    return result.stdout


def order_spans(spans: Sequence[DrawnSpan], parent_id: str = "", depth: int = 0) -> list[tuple[int, DrawnSpan]]:
    """Order spans as a tree, each before what is inside it, with its depth."""
    rows: list[tuple[int, DrawnSpan]] = []
    for span in sorted((each for each in spans if each.parent_id == parent_id), key=lambda each: each.start):
        rows += [(depth, span), *order_spans(spans, span.span_id, depth + 1)]
    return rows


def draw_trace(spans: Sequence[DrawnSpan]) -> str:
    """Draw a trace as SVG: a row for each span, its name at the left, its time as a bar."""
    rows = order_spans(spans)
    begin, seconds = rows[0][1].start, rows[0][1].end - rows[0][1].start
    height = _TOP + len(rows) * _ROW + 14
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="13" role="img">',
        "<title>One trace: an agent, the gateway, an approval, two attempts and the server behind them</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for index, (service, color) in enumerate(_COLORS.items()):
        lines.append(f'<rect x="{16 + index * 110}" y="14" width="12" height="12" fill="{color}"/>')
        lines.append(f'<text x="{34 + index * 110}" y="25" fill="#1f2328">{service}</text>')
    for tick in range(5):
        x = _LEFT + _BARS * tick / 4
        lines.append(f'<line x1="{x:.0f}" y1="48" x2="{x:.0f}" y2="{height - 8}" stroke="#d1d9e0"/>')
        lines.append(f'<text x="{x + 4:.0f}" y="44" fill="#59636e" font-size="11">{seconds * tick / 4:.1f} s</text>')
    for row, (depth, span) in enumerate(rows):
        lines += _draw_row(_TOP + row * _ROW, depth, span, begin, seconds)
    return "\n".join([*lines, "</svg>", ""])


def _draw_row(y: int, depth: int, span: DrawnSpan, begin: float, seconds: float) -> Iterator[str]:
    x = _LEFT + _BARS * (span.start - begin) / seconds
    width = max(2.0, _BARS * (span.end - span.start) / seconds)
    milliseconds = (span.end - span.start) * 1000
    duration = f"{milliseconds:,.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"
    text = escape(f"{duration} · {span.note}" if span.note else duration)
    # Beside the bar, or before it where it would end outside the picture.
    is_right = x + width + 7 * len(text) < _WIDTH - 8
    at, anchor = (x + width + 6, "start") if is_right else (x - 6, "end")
    yield f'<text x="{16 + depth * 14}" y="{y + 14}" fill="#1f2328">{escape(span.name)}</text>'
    yield f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="14" rx="2" fill="{_COLORS[span.service]}"/>'
    yield f'<text x="{at:.1f}" y="{y + 14}" text-anchor="{anchor}" fill="#59636e" font-size="11">{text}</text>'


def write_picture(path: Path) -> None:
    """Record a trace in a folder of its own, and draw it."""
    work = Path(tempfile.mkdtemp(prefix="deputize-trace-"))
    try:
        path.write_text(draw_trace(record_trace(work / "shop")), encoding="utf-8")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the picture of a trace."""
    argparse.ArgumentParser(prog="python -m docs.trace_picture", description=main.__doc__).parse_args(arguments)
    write_picture(PICTURE)
    print(f"trace_picture: {PICTURE.relative_to(DOCS.parent)}, {PICTURE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
