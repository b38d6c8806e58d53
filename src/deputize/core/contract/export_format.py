"""Name the formats that a tool can be exported in."""

from enum import StrEnum


class ExportFormat(StrEnum):
    """A format for another system: the tool standard, a model API, or plain JSON Schema."""

    AGENT_TOOL = "agent-tool"
    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    JSON_SCHEMA = "json-schema"
