"""The production guide as a reader copies it: its commands and settings, with the reader's own addresses."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "run-in-production.md"
_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
_SETTING = re.compile(r"^[a-z_]+ = ", re.MULTILINE)
# What `deputize init` has written into every project.
_STARTER_SETTINGS = {"python", "files"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Guide:
    """The page with the reader's own addresses."""

    replacements: Mapping[str, str]
    text: str

    def find_command(self, start: str) -> str:
        """Find the line of the guide that begins like this, or raise: then the step is not documented."""
        for kind, block in _BLOCK.findall(self.text):
            for line in block.splitlines() if kind == "console" else ():
                if line.startswith(f"$ {start}"):
                    return self._replace(line.removeprefix("$ "))
        raise LookupError(f"the guide has no command {start!r}")

    def find_settings(self, word: str) -> str:
        """Find the settings that contain a word."""
        for kind, block in _BLOCK.findall(self.text):
            if kind == "toml" and word in block:
                return self._replace(block)
        raise LookupError(f"the guide has no settings with {word!r}")

    def count_settings(self) -> int:
        """Count what the reader has to set: in the file beyond what the project has, and in the environment."""
        names = [each.split(" ")[0] for each in _SETTING.findall(self.find_settings("[[identity.issuers]]"))]
        variables = set(re.findall(r"DEPUTIZE_DATABASE__(?:MIGRATION_)?URL(?==)", self.text))
        return len([name for name in names if name not in _STARTER_SETTINGS]) + len(variables)

    def _replace(self, text: str) -> str:
        for example, own in self.replacements.items():
            text = text.replace(example, own)
        return text


def load_guide(replacements: Mapping[str, str]) -> Guide:
    """Read the page."""
    return Guide(replacements=replacements, text=_PAGE.read_text(encoding="utf-8"))
