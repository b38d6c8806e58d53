"""Read what an author adds to the tests of a tool: values that exist, how to see its state, and how to undo it.

It is optional, and stands in `contract-tests/NAME.yaml` beside the regressions of the same tool.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deputize.core.config_error import ConfigError
from deputize.core.contract.contract import ToolRef

FOLDER: Final = "contract-tests"
_PLACEHOLDER = re.compile(r"\{(result\.)?([A-Za-z_][A-Za-z0-9_]*)\}")
_MAX_BYTES: Final = 262_144


class _PlanPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StateReader(_PlanPart):
    """A tool that only reads, called before and after the tested one to see what it changed."""

    tool: ToolRef
    # `{name}` stands for an argument of the tested call.
    arguments: dict[str, Any] = Field(default_factory=dict)
    # JSON pointer to what is counted or added up: a number, a list of numbers, or a list or object to be counted.
    measure: Annotated[str, Field(pattern=r"^(/[^/]+)*$")] = ""


class ContractTestPlan(_PlanPart):
    """What an author adds to the tests of a tool."""

    values: dict[str, list[Any]] = Field(default_factory=dict)
    state: StateReader | None = None
    # Arguments of the tool named in the contract's `undo`; `{result.name}` stands for a part of the result.
    undo: dict[str, Any] | None = None


def load_plan(folder: Path, tool: str) -> ContractTestPlan:
    """Load the plan of a tool; an empty one if the author wrote none."""
    file = folder / f"{tool}.yaml"
    if not file.is_file():
        return ContractTestPlan()
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{file} has more than {_MAX_BYTES} bytes: shorten it.")
        return ContractTestPlan.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")) or {})
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file} cannot be read: {str(error).partition(chr(10))[0]}; correct the file.") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{file}: {place} is invalid: {first['msg'].lower()}; correct the value.") from None


def fill_placeholders(template: Any, arguments: dict[str, Any], result: Any = None) -> Any:
    """Fill the placeholders of a template. One that is the whole text keeps the type of its value."""
    if isinstance(template, dict):
        return {name: fill_placeholders(each, arguments, result) for name, each in template.items()}
    if isinstance(template, list):
        return [fill_placeholders(each, arguments, result) for each in template]
    if not isinstance(template, str):
        return template
    if whole := _PLACEHOLDER.fullmatch(template):
        return _find_value(whole, arguments, result)
    return _PLACEHOLDER.sub(lambda match: str(_find_value(match, arguments, result)), template)


def _find_value(match: re.Match[str], arguments: dict[str, Any], result: Any) -> Any:
    source = result if match[1] else arguments
    return source.get(match[2]) if isinstance(source, dict) else None
