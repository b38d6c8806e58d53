"""What every table of the settings is: named fields, each explained, and nothing that nobody knows."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
