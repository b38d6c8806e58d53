"""A gateway that starts the programs of servers by their names, as its own user and unpinned, as 0.1.0 did."""

import os
import shutil
from pathlib import Path
from unittest.mock import patch

from deputize.core.settings import McpServerSettings, Settings
from deputize.execute.upstreams import subprocess_server
from deputize.execute.upstreams.program_snapshot import PreparedProgram
from deputize.interfaces.cli.commands.service import serve
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


def _trust_programs(settings: Settings) -> Settings:
    """In place of the users that programs get, and of what their users must not read."""
    return settings


def _find_program(server: McpServerSettings, search_path: str, snapshot_folder: Path) -> PreparedProgram:
    """In place of the verified copies."""
    program = shutil.which(server.command[0], path=search_path) or server.command[0]
    return PreparedProgram(
        descriptor=os.open(program, os.O_RDONLY | os.O_CLOEXEC), arguments=(program, *server.command[1:])
    )


def change(gateway: Gateway) -> Gateway:
    return gateway


if __name__ == "__main__":
    patch.object(serve, "protect_process", _trust_programs).start()
    patch.object(subprocess_server, "prepare_program", _find_program).start()
    serve_variant(change)
