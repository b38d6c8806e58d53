"""Define the constants of MCP: protocol versions, headers, `_meta` keys and error codes.

From version 2026-07-28 on, every request stands alone and identifies its client in `_meta`; before, a handshake starts
a session. `interfaces/mcp/` and `execute/upstreams/` support both.
"""

from typing import Final

# Since this version: requests that stand alone.
MODERN_VERSION: Final = "2026-07-28"
# Before it: a handshake. The newest is offered first; a server may choose any of them.
HANDSHAKE_VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26")
# A server over stdio may also choose this version.
OLDEST_VERSION: Final = "2024-11-05"
SUPPORTED_VERSIONS: Final = (MODERN_VERSION, *HANDSHAKE_VERSIONS)

# Names of HTTP headers, in lower case.
VERSION_HEADER: Final = "mcp-protocol-version"
METHOD_HEADER: Final = "mcp-method"
NAME_HEADER: Final = "mcp-name"
PARAM_HEADER_PREFIX: Final = "mcp-param-"
SESSION_HEADER: Final = "mcp-session-id"
JSON_MEDIA_TYPE: Final = "application/json"
SSE_MEDIA_TYPE: Final = "text/event-stream"

# Keys of the protocol in `_meta`.
PROTOCOL_PREFIX: Final = "io.modelcontextprotocol/"
PROTOCOL_VERSION_KEY: Final = PROTOCOL_PREFIX + "protocolVersion"
CLIENT_INFO: Final = PROTOCOL_PREFIX + "clientInfo"
CLIENT_CAPABILITIES: Final = PROTOCOL_PREFIX + "clientCapabilities"
SERVER_INFO: Final = PROTOCOL_PREFIX + "serverInfo"
TASKS_EXTENSION: Final = PROTOCOL_PREFIX + "tasks"
TRACEPARENT: Final = "traceparent"
PROGRESS_TOKEN: Final = "progressToken"

# Keys of Deputize in `_meta`.
META_PREFIX: Final = "dev.deputize/"
IDEMPOTENCY_KEY: Final = META_PREFIX + "idempotency-key"
DEADLINE_MS: Final = META_PREFIX + "deadline-ms"
MAX_AGE_SECONDS: Final = META_PREFIX + "max-age-seconds"
DID_NOT_HAPPEN: Final = META_PREFIX + "did-not-happen"
PARENT_CALL_ID: Final = META_PREFIX + "parent-call-id"
FLOW_ID: Final = META_PREFIX + "flow-id"
DEPRECATION: Final = META_PREFIX + "deprecation"
TOOL_VERSION: Final = META_PREFIX + "version"
# A method of Deputize's own, and the extension that announces it.
NEGOTIATION: Final = META_PREFIX + "negotiate"

# Error codes of JSON-RPC and MCP.
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
# Before 2026-07-28; since then INVALID_PARAMS.
RESOURCE_NOT_FOUND: Final = -32002
HEADER_MISMATCH: Final = -32020
CAPABILITY_MISSING: Final = -32021
VERSION_UNSUPPORTED: Final = -32022
URL_ELICITATION_REQUIRED: Final = -32042
