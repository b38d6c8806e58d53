"""What an author may write beside a type to say more than it can: `Annotated[str, Sensitive("pii")]`."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema


@dataclass(frozen=True, slots=True)
class Sensitive:
    """Never shown in messages, and redacted before anything is logged, stored or hashed."""

    level: Literal["public", "internal", "pii", "secret"] = "secret"

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "x-sensitivity": self.level}


@dataclass(frozen=True, slots=True)
class Internal:
    """Not for callers: left out of the schema they see, refused when they send it."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "x-internal": True}


@dataclass(frozen=True, slots=True)
class Wrap:
    """On a list: a single value may stand for a list of one."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "x-coerce": "wrap"}


@dataclass(frozen=True, slots=True)
class Fact:
    """Policies may read this argument, as `context.facts` under its own name or this one."""

    name: str | None = None

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "x-policy": self.name or True}


MARKS = (Sensitive, Internal, Wrap, Fact)
