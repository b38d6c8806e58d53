"""Keep the arguments that a tool once failed on, so that they are tried in every later test of it.

One file per tool, `contract-tests/NAME.regressions.json`, written for a version control system: sorted, without times,
and with generated arguments only. Delete an entry if it no longer fits the contract.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from deputize.core.config_error import ConfigError
from deputize.testing.contract_cases import CaseKind, ContractCase, Expectation

_MAX_ENTRIES: Final = 200


class Regression(BaseModel):
    """One set of arguments that a tool failed on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    case: str
    expectation: Expectation
    arguments_json: str
    behaviour: str | None = None
    found_in: str

    def to_case(self) -> ContractCase:
        return ContractCase(
            kind=CaseKind.REGRESSION,
            name=self.case,
            expectation=self.expectation,
            arguments_json=self.arguments_json,
            behaviour=self.behaviour,
        )


_LIST = TypeAdapter(list[Regression])


def load_regressions(folder: Path, tool: str) -> list[Regression]:
    """Load the regressions of a tool; none if there is no file."""
    file = _build_path(folder, tool)
    if not file.is_file():
        return []
    try:
        return _LIST.validate_json(file.read_bytes())
    except (OSError, ValidationError):
        raise ConfigError(
            f"{file} is not a list of regressions: restore it, or delete it to begin a new one."
        ) from None


def add_regressions(folder: Path, tool: str, failures: Iterable[Regression]) -> Path | None:
    """Add failures to the file of a tool, each once; return the file if it changed."""
    entries = load_regressions(folder, tool)
    known_keys = {(each.arguments_json, each.expectation, each.behaviour) for each in entries}
    new = {
        (each.arguments_json, each.expectation, each.behaviour): each
        for each in failures
        if (each.arguments_json, each.expectation, each.behaviour) not in known_keys
    }
    if not new or len(entries) >= _MAX_ENTRIES:
        return None
    all_entries = sorted([*entries, *new.values()], key=lambda each: (each.case, each.arguments_json))[:_MAX_ENTRIES]
    folder.mkdir(parents=True, exist_ok=True)
    file = _build_path(folder, tool)
    text = json.dumps([each.model_dump(mode="json", exclude_none=True) for each in all_entries], indent=2)
    file.write_text(text + "\n", encoding="utf-8")
    return file


def _build_path(folder: Path, tool: str) -> Path:
    return folder / f"{tool}.regressions.json"
