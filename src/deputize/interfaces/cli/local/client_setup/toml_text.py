"""Change one table of a TOML text, and leave every other line as it is."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.program_pins import render_toml_value

_HEADER = re.compile(r"\s*\[")
# The first two names of a table, such as [mcp_servers.shop.env].
_NAMES = re.compile(r"""\s*\[\s*([\w-]+)\s*\.\s*["']?([\w-]+)["']?\s*[.\]]""")


def parse_toml_text(text: str) -> dict[str, Any]:
    """Parse a text; raise `ConfigError` for what is not TOML."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        raise ConfigError("it is not valid TOML") from None


def set_toml_table(text: str, section: str, name: str, value: Mapping[str, Any]) -> str:
    """Set a table of a section, at the end of the text. The name has only letters, digits, `-` and `_`."""
    remainder = remove_toml_table(text, section, name).rstrip()
    rows = "".join(f"{key} = {render_toml_value(each)}\n" for key, each in value.items())
    separator = "\n\n" if remainder else ""
    return f"{remainder}{separator}[{section}.{name}]\n{rows}"


def remove_toml_table(text: str, section: str, name: str) -> str:
    """Remove a table of a section and the tables in it, if they are there; comments after its last key stay."""
    entries = parse_toml_text(text).get(section, {})
    if not isinstance(entries, dict):
        raise ConfigError(f"its {section} is not a table")
    if name not in entries:
        return text
    lines: list[str] = []
    cut: list[str] | None = None
    for line in text.splitlines(keepends=True):
        if _HEADER.match(line):
            lines += _list_comments_after(cut or [])
            names = _NAMES.match(line)
            cut = [] if names and names.groups() == (section, name) else None
        (lines if cut is None else cut).append(line)
    return "".join(lines + _list_comments_after(cut or []))


def _list_comments_after(lines: list[str]) -> list[str]:
    """List the comments and empty lines at the end: they belong to what follows."""
    count = next((i for i, line in enumerate(reversed(lines)) if line.split("#")[0].strip()), len(lines))
    return lines[len(lines) - count :]
