"""Define where events are sent: `[[events.sinks]]`."""

from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, SecretStr, field_validator, model_validator

from deputize.core.settings.base import SettingsSection

# The name of the key that signs notifications of approval requests.
APPROVALS_KEY: Final = "approvals"
_SCHEMES = {"nats": ("nats", "tls"), "webhook": ("http", "https")}
Glob = Annotated[str, Field(min_length=1, max_length=200)]


class EventSinkSettings(SettingsSection):
    """One receiver of events."""

    # What a message about a mistake quotes could be a password.
    model_config = ConfigDict(hide_input_in_errors=True)

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="Name of the sink: small letters, digits, `-` and `_`. Its position in "
        "each tenant's log is stored under this name.",
    )
    kind: Literal["nats", "webhook"] = Field(description="NATS JetStream, or an HTTP server that gets signed batches.")
    url: SecretStr = Field(
        description="`nats://` or `tls://` with host and port, and a user and password or a token if needed; or the "
        "`https://` URL of a receiver."
    )
    credentials_file: Path | None = Field(
        None, description="Credentials file of NATS (`.creds`), read at each connection."
    )
    ca_file: Path | None = Field(None, description="Certificates that `tls://` trusts instead of the system's.")
    stream: str = Field(
        "deputize-events",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="JetStream stream: letters, digits, `-` and `_`. It is created if there is none, with "
        "the subjects below the prefix.",
    )
    subject_prefix: str = Field(
        "deputize.events",
        pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){0,7}$",
        max_length=200,
        description="First part of subjects: names of letters, digits, `-` and `_`, with dots between them. An event "
        "is published to it, its tenant and its type.",
    )
    types: tuple[Glob, ...] = Field(
        ("*",), min_length=1, max_length=50, description="Types of events that are sent, such as `tool.invocation.*`."
    )
    tenants: tuple[Glob, ...] = Field(
        ("*",), min_length=1, max_length=200, description="Tenants whose events are sent, such as `acme` or `beta-*`."
    )
    start: Literal["now", "beginning"] = Field(
        "now", description="Where a new sink begins in logs that exist already: at their end, or at their first entry."
    )

    @model_validator(mode="after")
    def _check_url(self) -> "EventSinkSettings":
        try:
            url = urlsplit(self.url.get_secret_value())
            is_complete = bool(url.hostname) and url.port != 0
        except ValueError:
            is_complete = False
        if not is_complete or url.scheme not in _SCHEMES[self.kind]:
            raise ValueError(f"the url of a {self.kind} sink begins with {' or '.join(_SCHEMES[self.kind])} and a host")
        if self.kind == "webhook" and url.username is not None:
            raise ValueError("the url of a webhook has no user or password: receivers verify the signature")
        if self.kind == "webhook" and self.name == APPROVALS_KEY:
            raise ValueError(f"no webhook is named {APPROVALS_KEY}: its receiver would have the key of notifications")
        return self

    @property
    def host(self) -> str:
        """The host of the URL."""
        return urlsplit(self.url.get_secret_value()).hostname or ""


class EventSettings(SettingsSection):
    """Events for other systems."""

    sinks: tuple[EventSinkSettings, ...] = Field((), max_length=20, description="Receivers of events.")

    @field_validator("sinks")
    @classmethod
    def _check_names(cls, sinks: tuple[EventSinkSettings, ...]) -> tuple[EventSinkSettings, ...]:
        names = [each.name for each in sinks]
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            raise ValueError(f"two sinks have the name {duplicate}: rename one of them")
        return sinks
