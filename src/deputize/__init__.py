"""Export the public API of Deputize, the gateway that governs the tool calls of AI agents.

Names are imported when first used, so that `import deputize` and `deputize --help` are fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deputize.catalog.importers.annotations import Fact, Internal, Sensitive, Wrap
    from deputize.catalog.importers.flow import flow
    from deputize.catalog.importers.python import tool
    from deputize.catalog.importers.state_readers import digest_files, digest_rows, read_etag
    from deputize.client import CallFailed, Client, DeputizeError, Reply, SyncClient, Unreachable
    from deputize.core.content import Content
    from deputize.core.contract.preview import Preview
    from deputize.core.contract.tools import ToolContext
    from deputize.core.errors import (
        Canceled,
        SemanticViolation,
        ToolConflict,
        ToolFailed,
        ToolPrecondition,
        UpstreamRateLimited,
        UpstreamTimeout,
        UpstreamUnavailable,
    )
    from deputize.core.hooks import Context, HookCall, HookProblem, Message, Permission, Stop, Update, hook
    from deputize.core.outcome import Result

    __version__: str

__all__ = [
    "CallFailed",
    "Canceled",
    "Client",
    "Content",
    "Context",
    "DeputizeError",
    "Fact",
    "HookCall",
    "HookProblem",
    "Internal",
    "Message",
    "Permission",
    "Preview",
    "Reply",
    "Result",
    "SemanticViolation",
    "Sensitive",
    "Stop",
    "SyncClient",
    "ToolConflict",
    "ToolContext",
    "ToolFailed",
    "ToolPrecondition",
    "Unreachable",
    "Update",
    "UpstreamRateLimited",
    "UpstreamTimeout",
    "UpstreamUnavailable",
    "Wrap",
    "__version__",
    "digest_files",
    "digest_rows",
    "flow",
    "hook",
    "read_etag",
    "tool",
]

_HOME = {
    **dict.fromkeys(("CallFailed", "Client", "DeputizeError", "Reply", "SyncClient", "Unreachable"), "deputize.client"),
    **dict.fromkeys(("Fact", "Internal", "Sensitive", "Wrap"), "deputize.catalog.importers.annotations"),
    **dict.fromkeys(
        (
            "Canceled",
            "SemanticViolation",
            "ToolConflict",
            "ToolFailed",
            "ToolPrecondition",
            "UpstreamRateLimited",
            "UpstreamTimeout",
            "UpstreamUnavailable",
        ),
        "deputize.core.errors",
    ),
    **dict.fromkeys(
        ("Context", "HookCall", "HookProblem", "Message", "Permission", "Stop", "Update", "hook"), "deputize.core.hooks"
    ),
    **dict.fromkeys(("digest_files", "digest_rows", "read_etag"), "deputize.catalog.importers.state_readers"),
    "Content": "deputize.core.content",
    "Preview": "deputize.core.contract.preview",
    "Result": "deputize.core.outcome",
    "ToolContext": "deputize.core.contract.tools",
    "flow": "deputize.catalog.importers.flow",
    "tool": "deputize.catalog.importers.python",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("deputize")
    if name not in _HOME:
        raise AttributeError(f"module 'deputize' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
