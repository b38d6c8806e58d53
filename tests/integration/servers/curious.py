"""An MCP server of 2026-07-28 that asks before it answers, and writes down everything it was told."""

from typing import Any

from deputize.core.mcp import CLIENT_CAPABILITIES, MODERN, SERVER_INFO
from tests.integration.servers.upstream import Upstream

STATE = "the state of the server itself"
NAME_FORM: dict[str, Any] = {
    "method": "elicitation/create",
    "params": {
        "message": "What is your name?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}
SAID: dict[str, Any] = {"who": {"action": "accept", "content": {"name": "Ana"}}}
FORMS: dict[str, Any] = {"elicitation": {}}
EVERYTHING: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


class Curious(Upstream):
    """`questions` are what it asks of whoever brings no answers; `heard` are the parameters of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: dict[str, Any] = {"who": NAME_FORM}
        self.state: str | None = STATE
        self.heard: list[dict[str, Any]] = []
        self.rounds = 1
        # Whether it does what it is told and does not get to say so.
        self.losing = False

    def forget(self) -> None:
        self.questions, self.state, self.rounds = {"who": NAME_FORM}, STATE, 1
        self.heard.clear()
        self.done.clear()

    @property
    def told_of(self) -> dict[str, Any]:
        """What it was last told that whoever calls can do."""
        found: dict[str, Any] = self.heard[-1]["_meta"][CLIENT_CAPABILITIES]
        return found

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        method, params = asked.get("method"), asked.get("params") or {}
        if method == "server/discover":
            said = {
                "supportedVersions": [MODERN], "capabilities": {"tools": {}, "prompts": {}},
                "instructions": self.instructions,
                "_meta": {SERVER_INFO: {"name": "orders", "version": "7"}},
            }  # fmt: skip
            return self._result(asked, said)
        if method == "prompts/list":
            return self._result(asked, {"prompts": [{"name": "summary", "description": "Sums up."}]})
        if method not in ("tools/call", "prompts/get"):
            return super().answer(asked)
        self.heard.append(params)
        answered = int(str(params.get("requestState") or f"{STATE}0").removeprefix(STATE) or 0)
        if "inputResponses" in params:
            answered += 1
        if answered < self.rounds:
            state = None if self.state is None else {"requestState": f"{self.state}{answered}"}
            return self._result(
                asked, {"resultType": "input_required", "inputRequests": self.questions, **(state or {})}
            )
        self.done.append((params["name"], params.get("inputResponses") or {}))
        if self.losing:
            raise ConnectionAbortedError
        said = {"type": "text", "text": f"{params['name']} done"}
        told: dict[str, Any] = {"resultType": "complete", "content": [said]}
        if method == "prompts/get":
            told = {"resultType": "complete", "messages": [{"role": "user", "content": said}]}
        return self._result(asked, told)
