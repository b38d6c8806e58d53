"""Tools of MCP servers: a definition as a server declares it becomes a contract as the operator describes it.

What a tool does, who may call it and with what credential is the operator's word, from `[[servers]]`; of the server come
its name, its text and its schemas. Its annotations are kept to be looked at and believed by nobody.

Above: `lifecycle/servers/`, which registers what is made here. Below: `core/servers.py`; nothing here speaks to a server.
"""

from collections.abc import Iterable, Mapping

from deputize.core.contract import Contract
from deputize.core.servers import Definition
from deputize.core.settings import McpServer

FIRST_VERSION = "1.0.0"


def served(server: McpServer, name: str) -> bool:
    """Whether the operator serves this tool of the server; `name` as the server spells it."""
    raise NotImplementedError


def named(server: McpServer, names: Iterable[str], taken: Mapping[str, str]) -> dict[str, str]:
    """The word each tool is registered under, by the name its server gives it. `taken` holds, in the same way, what is
    registered already, and stays as it is: a tool never moves to another word. Of several that would have the same one,
    all but the first (in the order of their own names) get a number, however the server lists them.
    """
    raise NotImplementedError


def imported(server: McpServer, definition: Definition, *, word: str, version: str = FIRST_VERSION) -> Contract:
    """The contract of one tool, pinned to its definition, or `NotAdmitted` with every reason why there is none.

    `word` is what `named` says; after an accepted change `version` is what `next_version` says.
    """
    raise NotImplementedError


def next_version(version: str) -> str:
    """The version of a changed definition: one major up, for nobody can tell what the change means to a caller."""
    raise NotImplementedError


def scopes_of(server: McpServer) -> tuple[str, ...]:
    """Every scope that some tool of the server asks of its callers."""
    raise NotImplementedError
