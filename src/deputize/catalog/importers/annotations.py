"""Annotate the types of a tool's arguments with marks, as in `Annotated[str, Sensitive("pii")]`."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema


@dataclass(frozen=True, slots=True)
class Sensitive:
    """A value that never appears in messages and is redacted before it is logged, stored or hashed."""

    level: Literal["public", "internal", "pii", "secret"] = "secret"

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "x-sensitivity": self.level}


@dataclass(frozen=True, slots=True)
class Internal:
    """An argument that callers neither see nor may send; hooks set it."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "x-internal": True}


@dataclass(frozen=True, slots=True)
class Wrap:
    """A list argument that also accepts a single value, as a list of one."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "x-coerce": "wrap"}


@dataclass(frozen=True, slots=True)
class Fact:
    """An argument that policies may read in `context.facts`, under its own name or this one."""

    name: str | None = None

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "x-policy": self.name or True}


MARKS = (Sensitive, Internal, Wrap, Fact)
