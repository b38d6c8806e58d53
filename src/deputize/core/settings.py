"""Every setting, typed and explained once; `docs/reference/settings.md` is generated from here.

Environment (`DEPUTIZE_…`, `__` between levels) beats `deputize.toml`, which beats the default.
"""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from deputize.core.addresses import HeaderName, require_address
from deputize.core.limit_settings import Limits
from deputize.core.questions import Family
from deputize.core.run_settings import Runs
from deputize.core.section import Section

SETTINGS_FILE = Path("deputize.toml")


class Server(Section):
    host: str = Field("127.0.0.1", description="Address the API listens on.")
    port: int = Field(7070, ge=0, le=65_535, description="Port of the API; 0 picks a free one.")
    metrics_host: str = Field("127.0.0.1", description="Address of the metrics listener; keep it private.")
    metrics_port: int = Field(7071, ge=0, le=65_535, description="Port of the metrics listener; 0 picks a free one.")
    max_body_bytes: int = Field(1_048_576, ge=1024, description="Larger request bodies are refused.")
    max_depth: int = Field(64, ge=4, le=200, description="Deeper nested JSON is refused.")


class Database(Section):
    url: SecretStr | None = Field(None, description="PostgreSQL to use; unset, `deputize dev` starts its own.")
    direct_url: SecretStr | None = Field(
        None,
        description="Same database without a connection pooler, for LISTEN and locks; defaults to `url`.",
    )
    read_connections: int = Field(8, ge=1, le=200, description="Connections for reads; writing takes two more.")
    batch_rows: int = Field(500, ge=1, le=5000, description="Most rows one group commit may carry.")
    retention_days: int = Field(30, ge=1, le=3650, description="Days before sealed originals are deleted.")


class Issuer(Section):
    """An identity provider whose tokens are accepted, and the tenant they speak for."""

    issuer: str = Field(description="Exactly the `iss` of its tokens.")
    audience: str = Field(description="The `aud` that means this gateway.")
    console_audience: str | None = Field(
        None,
        description="The `aud` of tokens people decide approvals with, and nothing else; unset, nobody decides by it.",
    )
    subject_claim: str = Field(
        "sub",
        description="The claim that names who it is; `oid` for Entra ID, whose `sub` differs by audience.",
    )
    jwks_url: str | None = Field(
        None,
        description="Where its public keys are published; without this or a file, OpenID discovery tells.",
    )
    jwks_file: Path | None = Field(None, description="A file with its public keys, instead of a URL.")
    algorithms: tuple[Literal["RS256", "ES256", "EdDSA"], ...] = Field(
        ("RS256", "ES256", "EdDSA"), description="Signature algorithms it may use."
    )
    tenant: str | None = Field(None, description="The tenant of every token of this issuer.")
    tenant_claim: str | None = Field(None, description="The claim that names the tenant, where one issuer serves many.")
    groups_claim: str = Field("groups", description="The claim that lists the user's groups.")
    trust: Literal["untrusted", "standard", "trusted"] = Field(
        "standard", description="What policies see as the trust of its callers."
    )
    human: bool = Field(False, description="Its tokens without `act` come from people who signed in.")
    development: bool = Field(False, description="Marks the local issuer of `deputize dev`; `serve` refuses it.")


class Identity(Section):
    issuers: tuple[Issuer, ...] = Field((), description="Whose tokens are accepted.")
    public_url: str | None = Field(
        None, description="This gateway's own address, as issuer of the tokens it exchanges; unset, it exchanges none."
    )
    max_grant_seconds: int = Field(28_800, ge=60, le=30 * 86_400, description="Longest life of a delegation.")
    token_cache_seconds: int = Field(30, ge=0, le=30, description="How long a verified token is remembered.")
    leeway_seconds: int = Field(5, ge=0, le=60, description="Clock difference to an issuer that is forgiven.")


class Tools(Section):
    python: tuple[str, ...] = Field(
        (), description="Python files (globs) with @tool functions, the operator's own code."
    )
    manifests: tuple[str, ...] = Field((), description="YAML or JSON manifests (globs).")
    tenant: str = Field("dev", description="The tenant these tools are registered for.")
    shared_with: tuple[str, ...] = Field(
        (), description="Other tenants (globs) whose administrators may register tools on these functions."
    )


class McpServer(Section):
    """An MCP server whose tools are served here, under its name, as the operator describes them. What the server says
    of its own tools' effects counts for nothing: what is named neither in `reads` nor in `writes` is destructive.
    """

    name: str = Field(pattern=r"^[a-z](?:_?[a-z0-9])*$", max_length=48, description="The namespace of its tools.")
    tenant: str | None = Field(None, description="The tenant it serves; unset, that of `[tools]`.")
    url: str | None = Field(None, description="Its address, for a server that is reached over HTTP.")
    command: tuple[str, ...] = Field((), description="Program and arguments, for a server that is started here.")
    sha256: str | None = Field(
        None, pattern=r"^[0-9a-f]{64}$", description="What the program's file must hash to; anything else is not run."
    )
    folder: Path | None = Field(None, description="Where the program is started; unset, an empty folder of its own.")
    env: dict[str, str] = Field({}, description="The program's environment; of ours it gets only PATH and a locale.")
    credential: Literal["none", "vault", "delegated", "link", "client"] = Field(
        "none",
        description="What calls carry: nothing, the tenant's `secret`, a token minted for `audience`, one of the "
        "user's own account there (`link`), or one of this gateway's own (`client`).",
    )
    secret: str | None = Field(
        None, description="Name of the tenant's secret, for `vault`; of the client's secret or key, with `client_id`."
    )
    audience: str | None = Field(None, description="Whom a minted token is for, for `delegated`.")
    issuer: str | None = Field(
        None, description="The authorization server, for `link` and `client`; unset, the one that the server names."
    )
    client_id: str | None = Field(
        None, description="What this gateway is called at `issuer`; unset, it makes itself known there, for `link`."
    )
    header: HeaderName = Field("Authorization", description="Carries it; in Authorization, as a bearer token.")
    secret_env: str | None = Field(None, description="The variable that carries it to a program.")
    tools: tuple[str, ...] = Field(("*",), description="Which of its tools are served, as globs over their own names.")
    resources: tuple[str, ...] = Field(
        (), description="Which of its resources and templates can be read, as globs over their addresses."
    )
    prompts: tuple[str, ...] = Field((), description="Which of its prompts can be had, as globs over their names.")
    reads: tuple[str, ...] = Field((), description="Tools that change nothing (globs).")
    writes: tuple[str, ...] = Field((), description="Tools whose changes can be taken back (globs).")
    repeatable: tuple[str, ...] = Field((), description="Tools that take the same key, or the same call, once (globs).")
    slow: tuple[str, ...] = Field((), description="Tools that may take minutes (globs).")
    scopes: tuple[str, ...] = Field((), description="Scopes its callers need.")
    asks: tuple[Family, ...] = Field((), description="What it may ask back of callers; anything else ends the call.")
    review: Literal["changes", "everything"] = Field(
        "changes", description="What waits for somebody's review: changes, or the first look at it as well."
    )
    start_seconds: float = Field(15.0, gt=0, le=120, description="How long it may take to start and introduce itself.")
    probe_seconds: float = Field(60.0, ge=1, le=3600, description="How often it is asked whether it is still the same.")
    recheck_seconds: float = Field(
        30.0, ge=0, le=3600, description="A change is asked of it only if its tools were looked at so recently."
    )
    memory_mb: int = Field(1024, ge=64, le=65_536, description="Most memory a program may use.")
    open_files: int = Field(256, ge=16, le=65_536, description="Most files a program may have open.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.url is None) == (not self.command):
            raise ValueError("a server has either a url or a command")
        require_address(self.url)
        if self.credential == "vault" and self.secret is None:
            raise ValueError("credential vault needs a secret")
        if self.credential == "delegated" and self.audience is None:
            raise ValueError("credential delegated needs an audience")
        if self.credential == "delegated" and self.command:
            told = "a program is told its credential once, when it starts, and a delegated token is made for one call"
            raise ValueError(f"{told}: reach this server by url, or give it a secret of the tenant (vault)")
        if self.command and self.credential != "none" and self.secret_env is None:
            raise ValueError("a program gets its credential in a variable: name it in secret_env")
        return self

    @model_validator(mode="after")
    def _signed_in_to(self) -> Self:
        signs_in, place = self.credential in ("link", "client"), urlsplit(self.url or "")
        if signs_in and place.scheme != "https" and place.hostname not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError(f"credential {self.credential} needs a url that begins with https, or one of this machine")
        if not signs_in and (self.issuer is not None or self.client_id is not None):
            raise ValueError("issuer and client_id are of use to credential link or client only")
        if self.credential == "client" and (self.client_id is None or self.secret is None):
            raise ValueError("credential client needs a client_id and a secret")
        if self.credential == "link" and self.secret is not None and self.client_id is None:
            raise ValueError("the secret is that of a client: name it in client_id")
        if self.client_id is not None and self.issuer is None:
            # A secret is shown to whom it is known to, and to nobody a server names.
            raise ValueError("a client is registered at one authorization server: name it in issuer")
        return self


class Policy(Section):
    files: tuple[str, ...] = Field(
        (),
        description="Cedar files (globs) put in force at start; unset, what was put last, or the default set.",
    )
    engine: Literal["cedar", "authzen", "both"] = Field(
        "cedar", description="Who decides: our own policies, a remote decision point, or the stricter of both."
    )
    authzen_url: str | None = Field(None, description="Base address of the AuthZEN decision point.")
    authzen_token: SecretStr | None = Field(None, description="Bearer token for the decision point.")
    authzen_seconds: float = Field(1.0, gt=0, le=30, description="How long it may take to answer; no answer denies.")


class Hook(Section):
    """A function of the operator's own that stands around calls."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,47}$", description="What records call it.")
    function: str = Field(description="`file.py:function` in the project folder.")
    tools: str = Field("*", description="The tools it stands around, as a glob over full names.")
    seconds: float = Field(1.0, gt=0, le=60, description="How long it may take; longer stops the call.")


class Vault(Section):
    kind: Literal["local", "openbao"] = Field(
        "local", description="Where secrets of tools are kept: sealed in our own database, or in OpenBao or Vault."
    )
    address: str | None = Field(None, description="Address of the OpenBao or Vault server.")
    token_file: Path | None = Field(None, description="A file with the token to ask it with, read for every use.")
    mount: str = Field("secret", description="The key-value (version 2) mount secrets lie under.")
    seconds: float = Field(2.0, gt=0, le=30, description="How long it may take to answer; no answer fails the call.")


class Keys(Section):
    master_file: Path = Field(
        Path(".deputize/master.key"),
        description="The 32-byte key that wraps each tenant's keys; made in dev.",
    )


class Timing(Section):
    lease_seconds: Annotated[float, Field(gt=0.5, le=300)] = Field(10.0, description="Life of a process lease.")
    sweep_seconds: Annotated[float, Field(gt=0.05, le=60)] = Field(
        1.0, description="How often dead owners are looked for."
    )
    margin_seconds: Annotated[float, Field(ge=0, le=60)] = Field(
        2.0,
        description="Grace after a dead owner's lease and its tool's timeout before a call is called unknown.",
    )
    refresh_seconds: Annotated[float, Field(gt=0.05, le=60)] = Field(
        0.5, description="Poll that heals a snapshot whose change notification was lost."
    )
    max_clock_skew_seconds: Annotated[float, Field(gt=0, le=300)] = Field(
        30.0, description="Further than this from PostgreSQL's clock, the gateway is not ready."
    )


class Webhooks(Section):
    hosts: tuple[str, ...] = Field(
        (), description="Hosts that may be told over http, at private addresses, and with results; others over https."
    )
    seconds: float = Field(10.0, gt=0, le=60, description="How long a receiver may take to answer.")
    retry_seconds: float = Field(
        5.0, ge=0.05, le=3600, description="Pause before the second attempt; each further one is four times as long."
    )
    attempts: int = Field(8, ge=1, le=30, description="After so many attempts a delivery joins the dead letters.")


class Notify(Section):
    """Where one group is told that something waits for it."""

    group: str = Field(min_length=1, max_length=255, description="The group, as approvals name it.")
    url: SecretStr = Field(description="An apprise URL, or the https address of a signed webhook.")
    tenants: str = Field("*", description="Tenants whose group it is, as a glob.")


class Approvals(Section):
    groups: tuple[Annotated[str, Field(min_length=1, max_length=255)], ...] = Field(
        ("approvers",),
        min_length=1,
        max_length=10,
        description="Who is asked where a rule names nobody: the first group at once, each further one a step later.",
    )
    fresh_seconds: int = Field(
        900, ge=30, le=86_400, description="How long ago whoever decides may have signed in (`auth_time`)."
    )
    step_seconds: tuple[Annotated[int, Field(ge=1, le=30 * 86_400)], ...] = Field(
        (3600, 14_400, 86_400),
        min_length=1,
        max_length=10,
        description="Seconds after the question at which the next group is asked; at the last of them it is denied.",
    )
    remind_seconds: int = Field(
        1800, ge=60, le=30 * 86_400, description="Pause between reminders of what still waits for a group."
    )
    digest_over: int = Field(
        5, ge=1, le=1000, description="Where more than this wait for one group, it is told of all in one message."
    )
    console_url: str | None = Field(
        None,
        description="Address people reach this gateway under, for links in messages; unset, `identity.public_url`.",
    )
    notify: tuple[Notify, ...] = Field((), description="Where groups are told.")

    @field_validator("step_seconds")
    @classmethod
    def _each_later(cls, steps: tuple[int, ...]) -> tuple[int, ...]:
        if any(after <= before for before, after in pairwise(steps)):
            raise ValueError("each step must lie after the one before it")
        return steps


class Console(Section):
    """Pages where people see and decide what waits for them. In development a code from the terminal opens them too."""

    issuer: str | None = Field(
        None, description="Where people sign in: one of `identity.issuers` that is human; unset, there are no pages."
    )
    client_id: str | None = Field(None, description="What this gateway is called as a client there.")
    client_secret_file: Path | None = Field(None, description="A file with the client's secret, if it has one.")
    scopes: tuple[str, ...] = Field(
        ("openid",), description="Scopes asked for at sign-in; some issuers tell groups only for one of their own."
    )
    session_seconds: int = Field(900, ge=60, le=43_200, description="How long somebody stays signed in.")


class Telemetry(Section):
    trace_sample: float = Field(0.01, ge=0, le=1, description="Share of calls traced; a sampled traceparent always is.")
    otlp_endpoint: str | None = Field(None, description="Where spans are sent (OTLP over HTTP); unset, nowhere.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe line logged.")
    log_json: bool = Field(False, description="Logs as JSON lines instead of text.")


class Settings(BaseSettings):
    """All of them; each section is a table of deputize.toml."""

    model_config = SettingsConfigDict(
        env_prefix="DEPUTIZE_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        toml_file=SETTINGS_FILE,
    )

    folder: Path = Field(Path(".deputize"), description="Where a development gateway keeps its keys and database.")
    environment: Literal["development", "staging", "production"] = Field(
        "production", description="What policies see as the environment; `deputize dev` is always development."
    )
    server: Server = Server()
    database: Database = Database()
    identity: Identity = Identity()
    tools: Tools = Tools()
    servers: tuple[McpServer, ...] = Field((), description="MCP servers whose tools are served here.")
    policy: Policy = Policy()
    hooks: tuple[Hook, ...] = Field((), description="Functions around calls, outermost first.")
    limits: Limits = Limits()
    vault: Vault = Vault()
    keys: Keys = Keys()
    timing: Timing = Timing()
    runs: Runs = Runs()
    webhooks: Webhooks = Webhooks()
    approvals: Approvals = Approvals()
    console: Console = Console()
    telemetry: Telemetry = Telemetry()

    @field_validator("servers")
    @classmethod
    def _each_name_once(cls, servers: tuple[McpServer, ...]) -> tuple[McpServer, ...]:
        named = [(each.tenant, each.name) for each in servers]
        twice = next((name for tenant, name in named if named.count((tenant, name)) > 1), None)
        if twice is not None:
            raise ValueError(f"two servers are called {twice}")
        return servers

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)
