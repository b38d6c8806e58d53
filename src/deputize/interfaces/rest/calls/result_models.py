"""Define the model of a result that is given as a reference."""

from typing import Literal

from pydantic import BaseModel, Field


class ContentModel(BaseModel):
    """What a tool returned beside its payload. One of `text`, `data` and `uri` holds it."""

    kind: Literal["text", "image", "audio", "file", "link", "diff", "log"]
    text: str | None = None
    data: str | None = Field(None, description="The bytes, in base64.")
    uri: str | None = None
    name: str | None = None
    media_type: str | None = None


class ProvenanceModel(BaseModel):
    """Where a result comes from, and how good the tool says it is."""

    source: str
    retrieved_at: str
    data_version: str | None
    age_seconds: float | None = Field(None, description="How old the data was then, if that is known.")
    confidence: float | None = Field(None, description="How sure the tool is, from 0 to 1, if it says so.")
    is_cached: bool = Field(False, description="True if the tool was not called: an earlier result is still fresh.")


class SkippedToolModel(BaseModel):
    tool: str
    reason: str = Field(description="The slug of its error, such as `circuit-open`, or why it was not called.")


class DegradedModel(BaseModel):
    """An answer of an alternative that the tool's contract names under `fallback`."""

    from_tool: str = Field(alias="from", description="The tool that was called.")
    to: str = Field(description="The tool that answered, in a call of its own.")
    reason: str = Field(description="The slug of the error that the called tool ended with.")
    attempts: list[SkippedToolModel] = Field(description="The alternatives before it, and why each gave no answer.")


class PersistenceModel(BaseModel):
    """How a result is stored that is not given whole. `result` is a part of it then, and says how to read on."""

    state: Literal["stored", "not_stored"] = Field(description="`not_stored`: there is only the part in `result`.")
    reference: str | None = Field(description="What `results.read` takes.")
    expires_at: str | None
    bytes: int = Field(description="The size of the whole result as JSON.")
    level: Literal["L1", "L2", "L3", "L4"] = Field(
        description="What `result` shows: the first parts (L1), the tool's summary (L2), short values (L3) or only the "
        "type and size (L4)."
    )
    redaction: Literal["none", "redacted"]
    redacted_values: int = Field(description="How many sensitive values `result` hides.")
