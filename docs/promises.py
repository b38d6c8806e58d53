"""Render the page of promises from `reference/requirements.toml`."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LEDGER = Path(__file__).parent / "reference" / "requirements.toml"
STATES = ("done", "partial", "planned")
GROUPS = {
    "CON": "Tool contracts",
    "REG": "Registry",
    "INV": "Invocation",
    "GOV": "Governance",
    "RES": "Resilience and composition",
    "EXE": "Execution",
    "OBS": "Observability",
    "QUA": "Quality",
    "NEW": "New features",
}


def load_rows() -> dict[str, dict[str, Any]]:
    """Load the rows by their id: `promise`, `state` and what is `missing`."""
    return tomllib.loads(LEDGER.read_text(encoding="utf-8"))


def count_states() -> str:
    states = [row["state"] for row in load_rows().values()]
    return ", ".join(f"{states.count(state)} {state}" for state in STATES) + f", of {len(states)}"


def render_lines() -> Iterator[str]:
    """Render one table per group."""
    rows = load_rows()
    for prefix, title in GROUPS.items():
        yield from ("", f"## {title}", "", "| row | promise | state |", "|---|---|---|")
        for row_id, row in rows.items():
            if row_id.partition("-")[0] == prefix:
                missing = f" *Missing: {row['missing']}.*" if "missing" in row else ""
                yield f"| {row_id} | {row['promise']}{missing} | {row['state']} |"
