"""What an MCP server says of itself and its tools, as words: nothing here speaks to one."""

from typing import Any

from deputize.core.canonical import digest
from deputize.core.frozen import frozen


@frozen
class Definition:
    """One tool as its server declares it. `said` is what was received, less what means nothing; the digest is over its
    canonical form, so the order of names and the way it was formatted change nothing.
    """

    name: str
    said: dict[str, Any]
    digest: str

    @classmethod
    def of(cls, said: dict[str, Any]) -> "Definition":
        return cls(name=str(said["name"]), said=said, digest=digest(said))


@frozen
class Discovered:
    """A server as it was found: what it calls itself, how it wants to be used, and all its tools, in its order."""

    protocol: str
    title: str
    version: str
    instructions: str
    tools: tuple[Definition, ...]

    @property
    def instructions_digest(self) -> str:
        return digest({"instructions": self.instructions})
