"""What `import deputize` promises."""

import subprocess
import sys

import deputize

PUBLIC = {
    "CallFailed", "Client", "Content", "Context", "DeputizeError", "Fact", "HookCall", "HookProblem", "Internal",
    "Message", "Permission", "Preview", "Reply", "Result", "SemanticViolation", "Sensitive", "Stop", "SyncClient",
    "ToolConflict",
    "ToolContext", "ToolFailed", "ToolPrecondition", "Unreachable", "Update", "UpstreamRateLimited", "UpstreamTimeout",
    "Canceled", "UpstreamUnavailable", "Wrap", "__version__", "digest_files", "digest_rows", "flow", "hook",
    "read_etag", "tool",
}  # fmt: skip


def test_the_public_api_is_exactly_this() -> None:
    assert set(deputize.__all__) == PUBLIC == set(dir(deputize))
    assert all(getattr(deputize, name) for name in PUBLIC)


def test_importing_it_loads_no_server_and_no_database() -> None:
    heavy = "{'asyncpg', 'fastapi', 'pydantic', 'uvicorn', 'httpx2', 'opentelemetry'}"
    script = f"import sys, deputize; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"
