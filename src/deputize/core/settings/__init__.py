"""Load all settings; `docs/reference/settings.md` is generated from their descriptions.

An environment variable (`DEPUTIZE_…`, `__` between levels) overrides `deputize.toml`, which overrides the default. Each
module defines the tables of one topic.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from deputize.core.settings.approvals import (
    ApprovalSettings,
    ConsoleGroup,
    ConsoleRole,
    ConsoleSettings,
    NotificationTarget,
)
from deputize.core.settings.base import SettingsSection
from deputize.core.settings.builtin import (
    BrowserSettings,
    BuildSettings,
    BuiltinSettings,
    CodeSettings,
    FilesSettings,
    GitSettings,
    SqlSettings,
    WebSettings,
)
from deputize.core.settings.consistency import ConsistencyRule, ConsistencySource
from deputize.core.settings.database import DatabaseSettings, KeySettings, TimingSettings
from deputize.core.settings.events import EventSettings, EventSinkSettings
from deputize.core.settings.grpc import GrpcSettings
from deputize.core.settings.identity import IdentitySettings, IssuerSettings, OperatorClientSettings
from deputize.core.settings.limits import LimitRule, LimitSettings
from deputize.core.settings.log import LogSettings, WitnessSettings
from deputize.core.settings.policy import PolicySettings
from deputize.core.settings.runs import RunLimit, RunSettings
from deputize.core.settings.sandboxes import SandboxSettings, Weakness
from deputize.core.settings.server import ServerSettings
from deputize.core.settings.servers import McpServerSettings
from deputize.core.settings.services import ServiceSettings
from deputize.core.settings.telemetry import TelemetrySettings
from deputize.core.settings.tools import HookSettings, ToolSettings
from deputize.core.settings.vault import VaultSettings
from deputize.core.settings.webhooks import WebhookSettings

__all__ = [
    "SETTINGS_FILE",
    "ApprovalSettings",
    "BrowserSettings",
    "BuildSettings",
    "BuiltinSettings",
    "CodeSettings",
    "ConsistencyRule",
    "ConsistencySource",
    "ConsoleGroup",
    "ConsoleRole",
    "ConsoleSettings",
    "DatabaseSettings",
    "EventSettings",
    "EventSinkSettings",
    "FilesSettings",
    "GitSettings",
    "GrpcSettings",
    "HookSettings",
    "IdentitySettings",
    "IssuerSettings",
    "KeySettings",
    "LimitRule",
    "LimitSettings",
    "LogSettings",
    "McpServerSettings",
    "NotificationTarget",
    "OperatorClientSettings",
    "PolicySettings",
    "RunLimit",
    "RunSettings",
    "SandboxSettings",
    "ServerSettings",
    "ServiceSettings",
    "Settings",
    "SettingsSection",
    "SqlSettings",
    "TelemetrySettings",
    "TimingSettings",
    "ToolSettings",
    "VaultSettings",
    "WebSettings",
    "WebhookSettings",
    "WitnessSettings",
]

SETTINGS_FILE = Path("deputize.toml")
_file_values: ContextVar[Mapping[str, Any] | None] = ContextVar("file_values", default=None)


# What people have linked accounts at.
LinkedServer = McpServerSettings | ServiceSettings


@contextmanager
def use_file_values(values: Mapping[str, Any]) -> Iterator[None]:
    """Read these values in place of `deputize.toml` within a block. Environment variables still override them."""
    token = _file_values.set(values)
    try:
        yield
    finally:
        _file_values.reset(token)


class Settings(BaseSettings):
    """All settings; each field with a section is a table of `deputize.toml`."""

    model_config = SettingsConfigDict(
        env_prefix="DEPUTIZE_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        toml_file=SETTINGS_FILE,
    )

    folder: Path = Field(Path(".deputize"), description="Folder of a development gateway, with its keys and database.")
    environment: Literal["development", "staging", "production"] = Field(
        "production", description="The environment that policies see. `deputize dev` is always `development`."
    )
    server: ServerSettings = ServerSettings()
    grpc: GrpcSettings = GrpcSettings()
    database: DatabaseSettings = DatabaseSettings()
    identity: IdentitySettings = IdentitySettings()
    tools: ToolSettings = ToolSettings()
    builtin: BuiltinSettings = BuiltinSettings()
    servers: tuple[McpServerSettings, ...] = Field((), description="MCP servers whose tools are served here.")
    services: tuple[ServiceSettings, ...] = Field((), description="HTTP services whose operations are served here.")
    sandboxes: SandboxSettings = SandboxSettings()
    policy: PolicySettings = PolicySettings()
    hooks: tuple[HookSettings, ...] = Field((), description="Hooks, outermost first.")
    limits: LimitSettings = LimitSettings()
    consistency: tuple[ConsistencyRule, ...] = Field((), max_length=100, description="Facts that several tools tell.")
    log: LogSettings = LogSettings()
    vault: VaultSettings = VaultSettings()
    keys: KeySettings = KeySettings()
    timing: TimingSettings = TimingSettings()
    runs: RunSettings = RunSettings()
    webhooks: WebhookSettings = WebhookSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    console: ConsoleSettings = ConsoleSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    events: EventSettings = EventSettings()

    def accepts_weakness(self, weakness: Weakness) -> bool:
        """Tell whether sandboxes may have a weakness: in production only if it is accepted by name."""
        return self.environment != "production" or weakness in self.sandboxes.accept

    @field_validator("servers")
    @classmethod
    def _check_unique_names(cls, servers: tuple[McpServerSettings, ...]) -> tuple[McpServerSettings, ...]:
        names = [(each.tenant, each.name) for each in servers]
        duplicate = next((name for tenant, name in names if names.count((tenant, name)) > 1), None)
        if duplicate is not None:
            raise ValueError(f"two servers have the name {duplicate}: rename one of them")
        return servers

    @model_validator(mode="after")
    def _check_service_names(self) -> Self:
        names = [(each.tenant or self.tools.tenant, each.name) for each in self.servers]
        names += [(each.tenant or self.tools.tenant, each.name) for each in self.services]
        duplicate = next((name for tenant, name in names if names.count((tenant, name)) > 1), None)
        if duplicate is not None:
            raise ValueError(f"two servers or services have the name {duplicate}: rename one of them")
        return self

    @field_validator("console")
    @classmethod
    def _choose_console_issuer(cls, console: ConsoleSettings, info: ValidationInfo) -> ConsoleSettings:
        """Let people sign in at the only issuer for people, if the settings name a client and no issuer."""
        identity: IdentitySettings | None = info.data.get("identity")
        people = [each.issuer for each in identity.issuers if each.human] if identity is not None else []
        if console.issuer is None and console.client_id is not None and len(people) == 1:
            return console.model_copy(update={"issuer": people[0]})
        return console

    @field_validator("consistency")
    @classmethod
    def _check_rule_names(cls, rules: tuple[ConsistencyRule, ...]) -> tuple[ConsistencyRule, ...]:
        names = [each.name for each in rules]
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            raise ValueError(f"two rules have the name {duplicate}: rename one of them")
        return rules

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        values = _file_values.get()
        if values is not None:
            # A source of files without a file: the library warns if there is none.
            no_file = TomlConfigSettingsSource(settings_cls, toml_file=None)
            return init_settings, env_settings, InitSettingsSource(settings_cls, dict(values)), no_file
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)
