"""Define the errors of tools and servers that cannot be found or used (E31xx)."""

from deputize.core.errors.base import ErrorCode, ErrorSpec, Problem


class RegistryProblem(Problem):
    """The tool, version or server cannot be found or used."""


class ToolNotFound(RegistryProblem):
    spec = ErrorSpec(
        slug="tool-not-found", code=ErrorCode.TOOL_NOT_FOUND, error_class="unknown_tool", number=3101, http=404,
        grpc="NOT_FOUND",
        title="Tool not found",
        advice="List the tools you can call: deputize tool list, or GET /v1/tools.",
    )  # fmt: skip


class VersionNotFound(RegistryProblem):
    spec = ErrorSpec(
        slug="version-not-found", code=ErrorCode.TOOL_NOT_FOUND, error_class="unknown_tool", number=3102, http=404,
        grpc="NOT_FOUND",
        title="Version not found",
        advice="Use one of the versions in details.",
    )  # fmt: skip


class VersionConflict(RegistryProblem):
    spec = ErrorSpec(
        slug="version-conflict", code=ErrorCode.CONFLICT, error_class="invalid_arguments", number=3103, http=409,
        grpc="ALREADY_EXISTS",
        title="This version exists with other content, or the name is taken",
        advice="Raise the version number: a registered version never changes.",
    )  # fmt: skip


class ToolRetired(RegistryProblem):
    spec = ErrorSpec(
        slug="tool-retired", code=ErrorCode.TOOL_NOT_FOUND, error_class="unknown_tool", number=3104, http=410,
        grpc="NOT_FOUND",
        title="This version of the tool is retired",
        advice="Use the replacement in details, or the latest version.",
    )  # fmt: skip


class ToolNotAdmitted(RegistryProblem):
    spec = ErrorSpec(
        slug="not-admitted", code=ErrorCode.INVALID_INPUT, error_class="schema_validation_failed", number=3105,
        http=422, grpc="INVALID_ARGUMENT",
        title="The tool's definition is invalid",
        advice="Fix every reason listed in details, then register the tool again.",
    )  # fmt: skip


class ToolDisabled(RegistryProblem):
    spec = ErrorSpec(
        slug="tool-disabled", code=ErrorCode.PRECONDITION_FAILED, error_class="capability_gap", number=3107, http=409,
        grpc="FAILED_PRECONDITION",
        title="This tool is disabled",
        advice="Ask an administrator to enable it, or use another tool.",
    )  # fmt: skip


class ToolRequiresSetup(RegistryProblem):
    spec = ErrorSpec(
        slug="requires-setup", code=ErrorCode.PRECONDITION_FAILED, error_class="setup_required", number=3108, http=424,
        grpc="FAILED_PRECONDITION",
        title="This tool is not set up",
        advice="Ask the operator to set up what details names, and to restart the gateway.",
    )  # fmt: skip


class VersionInUse(RegistryProblem):
    spec = ErrorSpec(
        slug="version-in-use", code=ErrorCode.CONFLICT, error_class="policy_blocked", number=3113, http=409,
        grpc="FAILED_PRECONDITION",
        title="This deprecated version is still used",
        advice="List its callers with deputize tool usage, and retire it when they have moved on; or force it.",
    )  # fmt: skip


class ToolDrifted(RegistryProblem):
    proves_nothing_happened = True
    spec = ErrorSpec(
        slug="tool-drifted", code=ErrorCode.PRECONDITION_FAILED, error_class="policy_blocked", number=3109, http=409,
        grpc="FAILED_PRECONDITION",
        title="The server changed this tool after it was accepted",
        advice="Ask an administrator to review the change: deputize servers review.",
    )  # fmt: skip


class ServerNotFound(RegistryProblem):
    spec = ErrorSpec(
        slug="server-not-found", code=ErrorCode.TOOL_NOT_FOUND, error_class="unknown_tool", number=3110, http=404,
        grpc="NOT_FOUND",
        title="MCP server not found",
        advice="List the servers: deputize servers list. The settings name them under [[servers]].",
    )  # fmt: skip


class ServerChangeNotFound(RegistryProblem):
    spec = ErrorSpec(
        slug="change-not-found", code=ErrorCode.TOOL_NOT_FOUND, error_class="unknown_tool", number=3111, http=404,
        grpc="NOT_FOUND",
        title="Change not found, or already decided",
        advice="List the open changes: deputize servers review SERVER.",
    )  # fmt: skip


class ResourceNotFound(RegistryProblem):
    spec = ErrorSpec(
        slug="not-offered", code=ErrorCode.TOOL_NOT_FOUND, error_class="unknown_tool", number=3112, http=404,
        grpc="NOT_FOUND",
        title="Resource or prompt not found",
        advice="List what you can read: resources/list, resources/templates/list and prompts/list.",
    )  # fmt: skip
