"""An MCP server of 2026-07-28 that asks before it answers, and writes down everything it was told."""

from typing import Any

from deputize.core.mcp.constants import CLIENT_CAPABILITIES, MODERN_VERSION, SERVER_INFO
from tests.support.mcp_servers.upstream import Upstream

STATE = "the state of the server itself"
NAME_FORM: dict[str, Any] = {
    "method": "elicitation/create",
    "params": {
        "message": "What is your name?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}
ANSWERS: dict[str, Any] = {"who": {"action": "accept", "content": {"name": "Ana"}}}
FORMS: dict[str, Any] = {"elicitation": {}}
EVERYTHING: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


class ElicitingServer(Upstream):
    """`questions` are what it asks of a caller without answers; `heard` are the parameters of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: dict[str, Any] = {"who": NAME_FORM}
        self.state: str | None = STATE
        self.call_params: list[dict[str, Any]] = []
        self.rounds = 1
        # Whether it does what it is told and does not get to say so.
        self.drops_connection = False

    def reset(self) -> None:
        self.questions, self.state, self.rounds = {"who": NAME_FORM}, STATE, 1
        self.call_params.clear()
        self.tool_calls.clear()

    @property
    def client_capabilities(self) -> dict[str, Any]:
        """Return the client capabilities of the last request."""
        found: dict[str, Any] = self.call_params[-1]["_meta"][CLIENT_CAPABILITIES]
        return found

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        method, params = request.get("method"), request.get("params") or {}
        if method == "server/discover":
            said = {
                "supportedVersions": [MODERN_VERSION], "capabilities": {"tools": {}, "prompts": {}},
                "instructions": self.instructions,
                "_meta": {SERVER_INFO: {"name": "orders", "version": "7"}},
            }  # fmt: skip
            return self._result(request, said)
        if method == "prompts/list":
            return self._result(request, {"prompts": [{"name": "summary", "description": "Sums up."}]})
        if method not in ("tools/call", "prompts/get"):
            return super().answer(request)
        self.call_params.append(params)
        answered = int(str(params.get("requestState") or f"{STATE}0").removeprefix(STATE) or 0)
        if "inputResponses" in params:
            answered += 1
        if answered < self.rounds:
            state = None if self.state is None else {"requestState": f"{self.state}{answered}"}
            return self._result(
                request, {"resultType": "input_required", "inputRequests": self.questions, **(state or {})}
            )
        self.tool_calls.append((params["name"], params.get("inputResponses") or {}))
        if self.drops_connection:
            raise ConnectionAbortedError
        said = {"type": "text", "text": f"{params['name']} done"}
        told: dict[str, Any] = {"resultType": "complete", "content": [said]}
        if method == "prompts/get":
            told = {"resultType": "complete", "messages": [{"role": "user", "content": said}]}
        return self._result(request, told)
