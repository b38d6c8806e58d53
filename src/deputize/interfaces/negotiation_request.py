"""Parse what an agent expects of a tool, for every interface."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from deputize.core.contract.contract import Effects
from deputize.core.contract.expectation import AgentExpectation, ExpectedSide
from deputize.interfaces.call_request import MAX_VERSION_LENGTH
from deputize.interfaces.rest.common import validate_body
from deputize.interfaces.rest.models import RequestModel

FieldPointer = Annotated[str, Field(pattern="^(/[^/]+)+$", max_length=400)]


class ExpectedSideBody(RequestModel):
    """What you send or read: a schema, or single fields by JSON pointer, as in `/orders/*/id` for each item."""

    schema_: dict[str, Any] | None = Field(
        None,
        alias="schema",
        description="Of arguments: all that you may send. Of results: all that you read; its other fields are ignored. "
        "Properties that it does not require are optional.",
    )
    fields: list[FieldPointer] = Field(default_factory=list, max_length=100, description="Fields that you need.")
    optional_fields: list[FieldPointer] = Field(
        default_factory=list, max_length=100, description="Fields that you can do without."
    )

    def build_side(self) -> ExpectedSide:
        return ExpectedSide(schema=self.schema_, fields=tuple(self.fields), optional_fields=tuple(self.optional_fields))


class NegotiationBody(RequestModel):
    """What you expect of a tool."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={
            "examples": [{"version": "^1", "output": {"fields": ["/text"], "optional_fields": ["/at"]}}]
        },
    )

    version: str = Field(
        "latest",
        min_length=1,
        max_length=MAX_VERSION_LENGTH,
        description="The versions that you can use: `^1`, `~1.2`, `1.x`, `1.2.3`, `*` or `latest`.",
    )
    input: ExpectedSideBody | None = Field(None, description="What you send.")
    output: ExpectedSideBody | None = Field(None, description="What you read.")
    effects: Effects | None = Field(None, description="The worst effect that you accept.")

    def build_expectation(self) -> AgentExpectation:
        """Build the expectation that the gateway compares with each version."""
        return AgentExpectation(
            input=None if self.input is None else self.input.build_side(),
            output=None if self.output is None else self.output.build_side(),
            effects=self.effects,
        )


def parse_negotiation(fields: Any) -> NegotiationBody:
    """Parse what an agent expects, or raise `MalformedRequest` with each wrong field."""
    return validate_body(NegotiationBody, fields)
