"""Declare what kind of tool it is, and where it runs."""

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import SerializerFunctionWrapHandler, StringConstraints, model_serializer

from deputize.core.contract.command import Command
from deputize.core.contract.http_request import HttpRequest
from deputize.core.contract.parts import ContractPart, omit_unset_fields

# The driver of a tool that is declared, and connected to no code yet.
NO_DRIVER: Final = "none"
# The driver of a tool that is a function of this process.
PYTHON_DRIVER: Final = "python"
# The driver of a flow, whose steps are calls of other tools.
FLOW_DRIVER: Final = "flow"


class ToolKind(StrEnum):
    """A kind of tool in the tool standard."""

    FUNCTION = "function"
    MCP_TOOL = "mcp_tool"
    OPENAPI_OPERATION = "openapi_operation"
    NATIVE_TOOL = "native_tool"
    BROWSER_ACTION = "browser_action"
    SHELL_COMMAND = "shell_command"
    CODE_EXECUTION = "code_execution"
    FILE_OPERATION = "file_operation"
    WEB_SEARCH = "web_search"
    RETRIEVAL = "retrieval"
    MODEL_TASK = "model_task"
    SKILL_TOOL = "skill_tool"
    PEER_AGENT_TOOL = "peer_agent_tool"
    POLICY_CHECK = "policy_check"
    ARTIFACT_OPERATION = "artifact_operation"
    EVIDENCE_EXPORT = "evidence_export"
    CUSTOM = "custom"


class Handler(ContractPart):
    """Where the tool runs. `target` is its address for the driver (Python: `module:function`; MCP: `server/tool` as the
    server spells it; HTTP, gRPC and commands: `service/operation`; a flow: its own name). `preview` is the address of
    its preview, if the target does not bring one. `pin` is the digest of the accepted definition, if a server can
    change it. `request` is the request of an HTTP operation or a gRPC method, `command` the program that a command
    runs. A tool with the driver `none` is declared and runs nowhere yet.
    """

    driver: Literal["python", "mcp", "http", "grpc", "command", "flow", "none"] = "python"
    target: Annotated[str, StringConstraints(min_length=1, max_length=400)]
    preview: Annotated[str, StringConstraints(min_length=1, max_length=400)] | None = None
    pin: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    request: HttpRequest | None = None
    command: Command | None = None

    @model_serializer(mode="wrap")
    def _serialize_compatibly(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return omit_unset_fields(self, dump(self), "preview", "pin", "request", "command")
