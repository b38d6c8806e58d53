"""`deputize import` that puts environment variables into settings and copies the values of `env`, as 0.1.0 did."""

import os
import re
import sys
from typing import Any
from unittest.mock import patch

from deputize.app import open_gateway
from deputize.interfaces.cli.local import client_configs, settings_text
from deputize.interfaces.cli.main import run_cli


def _expand_variables(resolver: object, text: str, label: str) -> str:
    """In place of the refusal of variables."""
    return re.sub(r"\$\{(?:env:)?(\w+)\}", lambda match: os.environ.get(match[1], ""), text)


def _copy_environment(name: str, environment: Any, resolver: object) -> tuple[dict[str, str], None, None]:
    """In place of the rule that a value is a secret unless its name is known."""
    return {key: str(value) for key, value in (environment or {}).items()}, None, None


def _write_shared_file(path: Any, text: str) -> None:
    """In place of files that only their owner can read."""
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    patch.object(client_configs._ReferenceResolver, "resolve_text", _expand_variables).start()
    patch.object(client_configs, "_split_environment", _copy_environment).start()
    patch.object(settings_text, "write_private_file", _write_shared_file).start()
    sys.argv[0] = "deputize"
    run_cli(open_gateway)
