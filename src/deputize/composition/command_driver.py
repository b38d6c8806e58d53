"""Build the driver of commands from the pinned manifests of the settings: what they do not declare never runs."""

import contextlib
import hashlib

from deputize.catalog.importers.openapi.document import InvalidDocument
from deputize.catalog.importers.openapi.service_job import build_contracts
from deputize.core.contract.contract import Contract
from deputize.core.settings import ServiceSettings, Settings
from deputize.execute.drivers.command import CommandDriver
from deputize.execute.shared_folders import SharedFolders
from deputize.sandboxes.client import SandboxClient


def build_command_driver(settings: Settings, stack: contextlib.AsyncExitStack) -> CommandDriver:
    declared = {
        (each.tenant or settings.tools.tenant, each.name): _read_contracts(each)
        for each in settings.services
        if each.kind == "commands"
    }
    commands = [each.handler.command for contracts in declared.values() for each in contracts.values()]
    written_paths = [
        folder.path for each in commands if each is not None for folder in each.folders or () if folder.write
    ]
    private_hosts = {
        (each.tenant or settings.tools.tenant, each.name): frozenset(map(str.lower, each.private_hosts))
        for each in settings.services
    }
    sandboxes, folders = SandboxClient.from_settings(settings), SharedFolders(settings, written_paths)
    driver = CommandDriver(declared, sandboxes, folders, private_hosts)
    stack.push_async_callback(driver.aclose)
    return driver


def _read_contracts(service: ServiceSettings) -> dict[str, Contract]:
    """Read what a pinned manifest declares, by target; nothing if it is not the pinned one, which the start reports."""
    try:
        content = service.document.read_bytes()
        if hashlib.sha256(content).hexdigest() != service.sha256:
            return {}
        contracts = build_contracts(service, content).contracts.values()
    except (OSError, InvalidDocument):
        return {}
    return {each.handler.target: each for each in contracts}
