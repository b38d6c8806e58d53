"""Define the checks of a result that go beyond its schema."""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, StringConstraints, model_serializer

from deputize.core.contract.parts import ContractPart, Schema, Text, Word, omit_unset_fields


class Predicate(ContractPart):
    """A check of a result: a JSON Schema that `{"input": …, "output": …}` must satisfy, comparisons between its values
    (`count(/output/items) <= /input/limit`), or both.

    A critical one that fails makes the call fail. A warning lets the result pass, and is reported with it.
    """

    name: Word
    description: Text = ""
    holds: Schema = Field(default_factory=dict)
    compare: Annotated[
        tuple[Annotated[str, StringConstraints(min_length=1, max_length=400)], ...], Field(max_length=20)
    ] = ()
    severity: Literal["critical", "warning"] = "critical"

    @model_serializer(mode="wrap")
    def _serialize_compatibly(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return omit_unset_fields(self, dump(self), "compare", "severity")
