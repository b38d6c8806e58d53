"""Define who cosigns the checkpoints of tenants' logs: `[log]`."""

from typing import Self

from pydantic import Field, model_validator

from deputize.core.settings.base import SettingsSection

MAX_WITNESSES = 20


class WitnessSettings(SettingsSection):
    """A witness that cosigns checkpoints over HTTP (C2SP tlog-witness)."""

    key: str = Field(max_length=500, description="Its verifier key, `NAME+ID+KEY`, for cosignatures (cosignature/v1).")
    url: str = Field(max_length=1000, description="Its submission prefix: checkpoints go to `add-checkpoint` below it.")


class LogSettings(SettingsSection):
    """The transparency logs of tenants."""

    witnesses: tuple[WitnessSettings, ...] = Field(
        (),
        max_length=MAX_WITNESSES,
        description="Witnesses that cosign checkpoints. They see name, size and root of each log, no entries.",
    )
    threshold: int | None = Field(
        None, ge=1, description="How many of them have to cosign a checkpoint until it is witnessed. Default: all."
    )

    @model_validator(mode="after")
    def _check_threshold(self) -> Self:
        if self.threshold is not None and self.threshold > len(self.witnesses):
            raise ValueError(f"threshold is {self.threshold}, but there are {len(self.witnesses)} witnesses")
        return self
