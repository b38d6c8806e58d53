"""Write the tables and curves of `docs/explanation/scale.md` from `proofs/scale/measurements.json`.

`docs/generate.py` calls it. Every number on the page is measured, or computed here from measured ones and from the
assumptions below, which the page repeats.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

DOCS = Path(__file__).parent
PAGE = DOCS / "explanation" / "scale.md"
MEASUREMENTS = DOCS.parent / "proofs" / "scale" / "measurements.json"
_BLOCK = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

CALLS_PER_DAY: Final = 1_000_000_000
PEAK: Final = 3
"""The busiest second of a day, as a multiple of the mean."""
MIX: Final = {"read": 0.80, "write": 0.15, "refused": 0.04, "run": 0.01}
# What one server of a cell is taken to have, and how much of it is used at the peak.
SERVER_CORES: Final = 32
USED: Final = 0.6
WAL_MIB: Final = 400
DISK_TIB: Final = 20
KEPT_DAYS: Final = 30
_SECONDS_PER_DAY: Final = 86_400
_COLORS: Final = ("#0969da", "#8250df", "#1a7f37", "#bc4c00")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 300, 70, 130, 46, 52


def load_measurements() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(MEASUREMENTS.read_text(encoding="utf-8"))
    return document


def render_scale_page() -> str:
    """Fill the blocks of the page; the text around them is written by people."""
    blocks: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
        "where": _render_where,
        "costs": _render_costs,
        "growth": _render_growth,
        "billion": _render_billion,
        "cell": _render_cell,
        "small": _render_small,
    }
    document = load_measurements()

    def fill(match: re.Match[str]) -> str:
        return "\n".join([match[1].rstrip(), *blocks[match[2]](document), match[3]])

    return _BLOCK.sub(fill, PAGE.read_text(encoding="utf-8"))


def _render_where(document: dict[str, Any]) -> Iterator[str]:
    low, high = document["load"]
    yield (
        f"Measured on {document['measured_at']} at commit `{document['commit'][:8]}`, with Python {document['python']} "
        f"and PostgreSQL {document['postgres']} on one machine of {document['cores']} cores and "
        f"{document['memory_gib']} GiB, load average {low} to {high}; {document['calls']} calls of each kind at each "
        "point, made by one process whose PostgreSQL is on the same machine. "
        "Numbers of rows and bytes carry over to other machines, CPU roughly, rates do not."
    )


def _render_costs(document: dict[str, Any]) -> Iterator[str]:
    point = _choose_point(document)
    yield f"With {point['tenants']} tenants and {point['rows']:,} stored calls:"
    yield ""
    yield "| kind of call | CPU of the gateway | CPU of PostgreSQL | rows written | write-ahead log |"
    yield "|---|---|---|---|---|"
    for cost in point["costs"]:
        yield (
            f"| {cost['kind']} | {cost['gateway_ms']:.2f} ms | {cost['postgres_ms']:.2f} ms | "
            f"{document['rows_written'][cost['kind']]:.1f} | {cost['wal_bytes'] / 1024:.1f} KiB |"
        )


def _render_growth(document: dict[str, Any]) -> Iterator[str]:
    yield "| tenants | stored calls | write: gateway | write: PostgreSQL | write: log | newest page | database |"
    yield "|---|---|---|---|---|---|---|"
    for point in document["points"]:
        write = _find_cost(point, "write")
        yield (
            f"| {point['tenants']} | {point['rows']:,} | {write['gateway_ms']:.2f} ms | "
            f"{write['postgres_ms']:.2f} ms | {write['wal_bytes'] / 1024:.1f} KiB | {point['list_ms']:.1f} ms | "
            f"{point['database_bytes'] / 2**20:,.0f} MiB |"
        )
    yield ""
    stored = compute_stored_bytes(document)
    yield (
        f"On the disk, with indexes and its part of the log, a write takes {stored['write'] / 1024:.1f} KiB and a read "
        f"{stored['read'] / 1024:.1f} KiB."
    )


def _render_billion(document: dict[str, Any]) -> Iterator[str]:
    mean = CALLS_PER_DAY / _SECONDS_PER_DAY
    shares = ", ".join(f"{share:.0%} {kind}" for kind, share in MIX.items())
    yield (
        f"{CALLS_PER_DAY:,} calls a day are {mean:,.0f} a second in the mean, and {mean * PEAK:,.0f} in a peak of "
        f"{PEAK} times that. The mix is {shares}."
    )
    yield ""
    yield "| if all calls were | cores of gateways, mean | cores of PostgreSQL, mean | log a day | rows written a day |"
    yield "|---|---|---|---|---|"
    rows = dict(document["rows_written"])
    rows["**the mix**"] = sum(share * rows[kind] for kind, share in MIX.items())
    costs = {each["kind"]: each for each in _choose_point(document)["costs"]} | {"**the mix**": mix_costs(document)}
    for name, cost in costs.items():
        yield (
            f"| {name} | {cost['gateway_ms'] * mean / 1000:,.0f} | {cost['postgres_ms'] * mean / 1000:,.0f} | "
            f"{cost['wal_bytes'] * CALLS_PER_DAY / 2**40:,.1f} TiB | "
            f"{rows[name] * CALLS_PER_DAY / 1e9:,.1f} billion |"
        )


def _render_cell(document: dict[str, Any]) -> Iterator[str]:
    yield (
        f"A cell is taken to have a server of {SERVER_CORES} cores, of which {USED:.0%} are used at the peak, a disk "
        f"that takes {WAL_MIB} MiB/s of log, and {DISK_TIB} TiB, which keep {KEPT_DAYS} days."
    )
    yield ""
    yield "| what ends first | calls per second in the peak | calls per day |"
    yield "|---|---|---|"
    limits = sorted(list_limits(document).items(), key=lambda each: each[1])
    for name, rate in limits:
        yield f"| {name} | {rate:,.0f} | {rate / PEAK * _SECONDS_PER_DAY / 1e6:,.0f} million |"
    first, rate = limits[0]
    cells = math.ceil(CALLS_PER_DAY / _SECONDS_PER_DAY * PEAK / rate)
    yield ""
    yield f"So {first} ends first, and a billion calls a day take {cells} such cells."


def _render_small(document: dict[str, Any]) -> Iterator[str]:
    mixed = mix_costs(document)
    rate = USED / (mixed["gateway_ms"] + mixed["postgres_ms"]) * 1000
    yield (
        f"One core for gateway, worker and database together, {USED:.0%} of it used, carries {rate:,.0f} calls of the "
        f"mix a second, or {rate / PEAK * _SECONDS_PER_DAY / 1e6:,.1f} million a day with the same peak."
    )


def list_limits(document: dict[str, Any]) -> dict[str, float]:
    """Compute at how many calls per second, in the peak, each part of a cell is used up."""
    mixed, stored = mix_costs(document), compute_stored_bytes(document)
    stored_per_call = sum(share * stored[kind] for kind, share in MIX.items())
    return {
        "CPU of PostgreSQL": SERVER_CORES * USED / mixed["postgres_ms"] * 1000,
        "the write-ahead log": WAL_MIB * 2**20 * USED / mixed["wal_bytes"],
        "the disk": DISK_TIB * 2**40 * USED / (KEPT_DAYS * _SECONDS_PER_DAY * stored_per_call) * PEAK,
    }


def mix_costs(document: dict[str, Any]) -> dict[str, float]:
    """Compute what a call of the mix costs."""
    point = _choose_point(document)
    names = ("gateway_ms", "postgres_ms", "wal_bytes")
    return {name: sum(share * _find_cost(point, kind)[name] for kind, share in MIX.items()) for name in names}


def _choose_point(document: dict[str, Any]) -> dict[str, Any]:
    """Choose the largest that was measured."""
    point: dict[str, Any] = max(document["points"], key=lambda each: (each["rows"], each["tenants"]))
    return point


def _find_cost(point: dict[str, Any], kind: str) -> dict[str, Any]:
    cost: dict[str, Any] = next(each for each in point["costs"] if each["kind"] == kind)
    return cost


def compute_stored_bytes(document: dict[str, Any]) -> dict[str, float]:
    """Compute what a call of each kind leaves on the disk: a write, as the database grew with copies of it."""
    points = [each for each in document["points"] if each["tenants"] == document["points"][0]["tenants"]]
    first, last = points[0], points[-1]
    copied = (last["database_bytes"] - first["database_bytes"]) / (last["rows"] - first["rows"])
    # The copies have no leaves in the log; a write has two entries, and a run one more.
    write = copied + 2 * last["leaf_bytes"]
    entry = last["entry_bytes"] + last["leaf_bytes"]
    return {"read": entry, "write": write, "refused": entry, "run": write + entry}


def list_pictures() -> dict[Path, Callable[[], str]]:
    """List the curves by their files."""
    return {
        DOCS / "images" / "scale-cpu.svg": lambda: _draw_growth(
            "CPU per write, gateway and PostgreSQL", "ms", lambda point: sum(_read_cpu(point))
        ),
        DOCS / "images" / "scale-log.svg": lambda: _draw_growth(
            "Write-ahead log per write", "KiB", lambda point: _find_cost(point, "write")["wal_bytes"] / 1024
        ),
        DOCS / "images" / "scale-list.svg": lambda: _draw_growth(
            "Newest page of a tenant's calls", "ms", lambda point: point["list_ms"]
        ),
    }


def _read_cpu(point: dict[str, Any]) -> tuple[float, float]:
    write = _find_cost(point, "write")
    return write["gateway_ms"], write["postgres_ms"]


def _draw_growth(title: str, unit: str, read: Callable[[dict[str, Any]], float]) -> str:
    """Draw a value over the number of stored calls, one line for each number of tenants."""
    points = load_measurements()["points"]
    tenants = sorted({each["tenants"] for each in points})
    series = {
        f"{number} tenant{'s' * (number > 1)}": [
            (each["rows"], read(each)) for each in points if each["tenants"] == number
        ]
        for number in tenants
    }
    return draw_chart(title, unit, series)


def draw_chart(title: str, unit: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Draw lines over a logarithmic axis of stored calls; the other axis begins at zero."""
    xs = sorted({x for line in series.values() for x, _ in line})
    top = max(y for line in series.values() for _, y in line) * 1.15 or 1
    low, high = math.log10(xs[0]), math.log10(xs[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        across = (math.log10(x) - low) / (high - low) if high > low else 0.5
        return round(_LEFT + across * width, 1), round(_HEIGHT - _BOTTOM - y / top * height, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="24" font-size="15" font-weight="600" fill="#1f2328">{title}</text>',
    ]
    for step in range(5):
        _, y = place(xs[0], top * step / 4)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="#d1d9e0"/>')
        label = f"{top * step / 4:.3g} {unit}"
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end" fill="#59636e">{label}</text>')
    for x in xs:
        across, _ = place(x, 0)
        parts.append(f'<text x="{across}" y="{_HEIGHT - 30}" text-anchor="middle" fill="#59636e">{x:,}</text>')
    parts.append(
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 10}" text-anchor="middle" fill="#59636e">'
        "stored calls</text>"
    )
    for number, (name, line) in enumerate(series.items()):
        color = _COLORS[number % len(_COLORS)]
        placed = [place(x, y) for x, y in line]
        path = " ".join(f"{x},{y}" for x, y in placed)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3.5" fill="{color}"/>' for x, y in placed]
        y = _TOP + 12 + 18 * number
        parts.append(f'<text x="{_WIDTH - _RIGHT + 14}" y="{y}" fill="{color}">● {name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
