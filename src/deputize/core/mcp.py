"""What both sides of MCP agree on: versions, names of headers and of `_meta` entries, and codes. Nothing here speaks.

Two eras. From 2026-07-28 on every request stands for itself and carries who asks in its `_meta`; before, a handshake
makes a session. `doors/mcp/` answers both, `execute/upstreams/` asks in both.
"""

from typing import Final

# From here on: requests that stand for themselves.
MODERN: Final = "2026-07-28"
# Before: a handshake. The newest is offered first; a server may answer with any of them.
HANDSHAKES: Final = ("2025-11-25", "2025-06-18", "2025-03-26")
# What a server may still answer a handshake with over a program's own input and output.
OLDEST: Final = "2024-11-05"
VERSIONS: Final = (MODERN, *HANDSHAKES)

# Headers, as HTTP carries them: names in lower case.
VERSION_HEADER: Final = "mcp-protocol-version"
METHOD_HEADER: Final = "mcp-method"
NAME_HEADER: Final = "mcp-name"
PARAM_HEADER_PREFIX: Final = "mcp-param-"
SESSION_HEADER: Final = "mcp-session-id"
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"

# What the protocol itself keeps in `_meta`.
PROTOCOL_PREFIX: Final = "io.modelcontextprotocol/"
PROTOCOL_VERSION: Final = PROTOCOL_PREFIX + "protocolVersion"
CLIENT_INFO: Final = PROTOCOL_PREFIX + "clientInfo"
CLIENT_CAPABILITIES: Final = PROTOCOL_PREFIX + "clientCapabilities"
SERVER_INFO: Final = PROTOCOL_PREFIX + "serverInfo"
SUBSCRIPTION_ID: Final = PROTOCOL_PREFIX + "subscriptionId"
TASKS_EXTENSION: Final = PROTOCOL_PREFIX + "tasks"
TRACEPARENT: Final = "traceparent"
PROGRESS_TOKEN: Final = "progressToken"

# What we keep there ourselves, under a name that is ours alone.
META_PREFIX: Final = "dev.deputize/"
IDEMPOTENCY_KEY: Final = META_PREFIX + "idempotency-key"
DEADLINE_MS: Final = META_PREFIX + "deadline-ms"

# Codes of JSON-RPC, and those that MCP adds to them.
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
# Before 2026-07-28; since then it is a parameter that is wrong.
RESOURCE_NOT_FOUND: Final = -32002
HEADER_MISMATCH: Final = -32020
CAPABILITY_MISSING: Final = -32021
VERSION_UNSUPPORTED: Final = -32022
URL_ELICITATION_REQUIRED: Final = -32042
