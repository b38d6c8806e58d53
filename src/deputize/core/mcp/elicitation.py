"""Define the input that a tool's server requests during a call, and the caller's responses.

A call that needs input ends in a state of its own, and nothing waits in it. The responses make a new call that
continues it from the server's request state. `execute/drivers/mcp.py` receives input requests,
`lifecycle/elicitation/request_sanitizer.py` checks them, and `lifecycle/elicitation/round_token.py` issues and opens
the token that responses refer to.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, Literal, TypeGuard

from deputize.core.value_types import frozen

CapabilityFamily = Literal["elicitation", "sampling", "roots"]


class ClientCapability(StrEnum):
    """What a client can answer: a form, a URL to open, a model's completion, its folders."""

    FORM = "elicitation.form"
    URL = "elicitation.url"
    SAMPLING = "sampling"
    ROOTS = "roots"

    @property
    def family(self) -> CapabilityFamily:
        """The name under which the settings allow it."""
        return _FAMILY_BY_CAPABILITY[self]


_FAMILY_BY_CAPABILITY: Final[Mapping[ClientCapability, CapabilityFamily]] = {
    ClientCapability.FORM: "elicitation",
    ClientCapability.URL: "elicitation",
    ClientCapability.SAMPLING: "sampling",
    ClientCapability.ROOTS: "roots",
}
NO_CAPABILITIES: Final[frozenset[ClientCapability]] = frozenset()
InputRequest = dict[str, Any]
# Every round token begins with this, so that it can be told from any other `requestState`.
ROUND_TOKEN_PREFIX: Final = "round1."


@frozen
class InputRequests:
    """The answer of a server that needs input: its requests by name, as MCP spells them, and its request state, which
    goes back to this server only.
    """

    server: str
    requests: dict[str, InputRequest]
    request_state: str | None = None


@frozen
class InputResponses:
    """A caller's responses by name, with the round token of the requests they answer."""

    round_token: str
    responses: dict[str, Any]


@frozen
class InputRound:
    """What a continuing call needs: the call it continues, the server's request state, and the responses."""

    continued_call_id: str
    request_state: str | None
    responses: dict[str, Any]


def is_round_token(text: object) -> TypeGuard[str]:
    """Tell whether a text claims to be a round token; verifying it is for the lifecycle."""
    return isinstance(text, str) and text.startswith(ROUND_TOKEN_PREFIX)


def find_required_capability(input_request: InputRequest) -> ClientCapability | None:
    """Find the capability that a request needs; None if the protocol does not define the request."""
    params = input_request.get("params")
    match input_request.get("method"):
        case "elicitation/create":
            mode = params.get("mode", "form") if isinstance(params, dict) else None
            return (
                {"form": ClientCapability.FORM, "url": ClientCapability.URL}.get(mode)
                if isinstance(mode, str)
                else None
            )
        case "sampling/createMessage":
            return ClientCapability.SAMPLING
        case "roots/list":
            return ClientCapability.ROOTS
        case _:
            return None


def parse_client_capabilities(capabilities: Mapping[str, Any]) -> frozenset[ClientCapability]:
    """Parse the capabilities of an MCP client. An elicitation capability without modes means forms."""
    result = {
        each
        for each in (ClientCapability.SAMPLING, ClientCapability.ROOTS)
        if isinstance(capabilities.get(each.value), dict)
    }
    elicitation = capabilities.get("elicitation")
    if isinstance(elicitation, dict):
        supports_url = isinstance(elicitation.get("url"), dict)
        if supports_url:
            result.add(ClientCapability.URL)
        if isinstance(elicitation.get("form"), dict) or not supports_url:
            result.add(ClientCapability.FORM)
    return frozenset(result)


def build_client_capabilities(capabilities: Iterable[ClientCapability]) -> dict[str, Any]:
    """Render capabilities as MCP declares them to a server, without any options."""
    result: dict[str, Any] = {}
    for each in sorted(capabilities):
        name, _, mode = each.value.partition(".")
        result.setdefault(name, {})
        if mode:
            result[name][mode] = {}
    return result
