"""Parse the `WWW-Authenticate` header of a server that requires authorization (RFC 9110, RFC 9728)."""

import re
from typing import Final

from deputize.core.value_types import frozen

MOST_SCOPES: Final = 100
_TOKEN: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_PART: Final = re.compile(
    rf'[\s,]*(?:(?P<name>{_TOKEN})\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s,"]*))|(?P<scheme>{_TOKEN})(?=[\s,]|$))'
)
_ESCAPE: Final = re.compile(r"\\(.)")
# RFC 6749, 3.3.
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")
_SCHEMES: Final = ("bearer",)


@frozen
class Challenge:
    """A server's bearer challenge; fields that the header does not have are empty."""

    resource_metadata: str = ""
    scopes: tuple[str, ...] = ()
    error: str = ""

    @property
    def is_scope_insufficient(self) -> bool:
        """True if the token is valid but lacks scopes."""
        return self.error == "insufficient_scope"


def parse_challenge(header: str) -> Challenge:
    """Parse the first bearer challenge of the header; invalid parts are ignored."""
    parameters = _parse_parameters(header)
    return Challenge(
        resource_metadata=parameters.get("resource_metadata", ""),
        scopes=parse_scopes(parameters.get("scope", "")),
        error=parameters.get("error", ""),
    )


def parse_scopes(text: str) -> tuple[str, ...]:
    """Parse space-separated scopes, each once; invalid ones are left out."""
    scopes = dict.fromkeys(each for each in text.split() if _SCOPE.fullmatch(each))
    return tuple(scopes)[:MOST_SCOPES]


def merge_scopes(previous: tuple[str, ...], additional: tuple[str, ...]) -> tuple[str, ...]:
    """Merge scopes, each once, so that requesting more does not lose those granted before."""
    return tuple(dict.fromkeys((*previous, *additional)))


def _parse_parameters(header: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    is_bearer, position = False, 0
    while match := _PART.match(header, position):
        position = match.end()
        if match["scheme"] is not None:
            if is_bearer:
                break
            is_bearer = match["scheme"].lower() in _SCHEMES
        elif is_bearer:
            value = match["bare"] if match["quoted"] is None else _ESCAPE.sub(r"\1", match["quoted"])
            parameters.setdefault(match["name"].lower(), value)
    return parameters
