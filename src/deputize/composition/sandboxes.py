"""Build the sandboxes of this host as the settings require them."""

import contextlib

from deputize.core.settings import Settings
from deputize.runs.interpreter import InterpreterSandboxes
from deputize.sandboxes.client import SandboxClient


def build_interpreters(settings: Settings, stack: contextlib.AsyncExitStack) -> InterpreterSandboxes:
    may_be_bare = settings.accepts_weakness("unsandboxed_code")
    # Who accepts no sandbox accepts a weak one.
    client = SandboxClient.from_settings(settings, accept_weak_limits=may_be_bare)
    interpreters = InterpreterSandboxes(client, may_be_bare=may_be_bare)
    stack.push_async_callback(interpreters.aclose)
    return interpreters
