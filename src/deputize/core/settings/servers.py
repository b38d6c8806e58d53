"""Define the MCP servers whose tools this gateway serves: `[[servers]]`."""

from ipaddress import IPv6Address
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, field_validator, model_validator

from deputize.core.http_urls import HeaderName, require_http_url
from deputize.core.mcp.elicitation import CapabilityFamily
from deputize.core.settings.base import SettingsSection

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


def _require_target(target: str) -> str:
    """Refuse what the proxy of a sandbox would not take: its program would never be started."""
    host, _, port = target.rpartition(":")
    if not 0 < int(port) < 65_536:
        raise ValueError("a port of hosts is a number from 1 to 65535")
    if host.startswith("["):
        IPv6Address(host[1:-1])
    elif not host.strip("."):
        raise ValueError("write a host and a port, as in api.example.com:443")
    return target


Target = Annotated[
    str,
    StringConstraints(pattern=r"^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]{1,253}):[0-9]{1,5}$"),
    AfterValidator(_require_target),
]
FactName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
_FACT_PREFIX: Final = "arguments."
# Of a fact that is a member of the argument `body`.
BODY_PREFIX: Final = "body."
_MOST_FACTS: Final = 50


class ServerFactSettings(SettingsSection):
    """An argument of the tools of a server or service that policies may read in `context.facts`."""

    argument: str = Field(
        min_length=1,
        max_length=128 + len(_FACT_PREFIX),
        description='The argument, as in `"arguments.path"`, or a member of the body, as in `"arguments.body.amount"`. '
        "Tools without it do not have the fact.",
    )
    type: Literal["text", "path", "integer", "boolean", "texts", "paths"] | None = Field(
        None,
        description="What the argument is; a tool whose argument is something else does not have the fact. `path` is "
        "an absolute path in normal form, and a call with any other is refused. `texts` and `paths` are lists. "
        "Default: a text that must be a normal path if it contains a slash or backslash.",
    )

    @property
    def argument_name(self) -> str:
        """The name of the argument."""
        return self.argument.removeprefix(_FACT_PREFIX)

    @field_validator("argument")
    @classmethod
    def _require_argument(cls, argument: str) -> str:
        name = argument.removeprefix(_FACT_PREFIX)
        if name == argument or not name:
            raise ValueError('write the argument as in "arguments.path"')
        if "." in name.removeprefix(BODY_PREFIX):
            raise ValueError(
                f"only arguments of the tool itself and members of its body can be facts, not parts of them: {argument}"
            )
        return argument


def _accept_bare_arguments(facts: object) -> object:
    if not isinstance(facts, dict):
        return facts
    return {name: {"argument": each} if isinstance(each, str) else each for name, each in facts.items()}


def _require_distinct_arguments(facts: dict[str, ServerFactSettings]) -> dict[str, ServerFactSettings]:
    arguments = [each.argument for each in facts.values()]
    duplicates = sorted({each for each in arguments if arguments.count(each) > 1})
    if duplicates:
        raise ValueError(f"an argument can be one fact only, and {duplicates[0]} is several: keep one of them")
    return facts


# Of servers and services alike.
Facts = Annotated[
    dict[FactName, ServerFactSettings],
    BeforeValidator(_accept_bare_arguments),
    AfterValidator(_require_distinct_arguments),
    Field(
        max_length=_MOST_FACTS,
        description='Arguments that policies may read, by the name of the fact, as in `facts.path = "arguments.path"` '
        'or `facts.path = { argument = "arguments.path", type = "path" }`. Types: `text`, `path`, `integer`, '
        "`boolean`, `texts`, `paths`. A path that is not in normal form is refused, and by default so is any "
        "text with a slash or backslash that is not a normal path.",
    ),
]
RecordArguments = Annotated[
    bool,
    Field(
        description="Whether each argument that is a text, an integer, a boolean or a list of texts becomes a fact: "
        "its name with `_text`, `_number`, `_flag` or `_list`. Decision records then have its value, and rules can "
        "read it. Documents such as `content` and `body`, and arguments that `facts` names, are left out.",
    ),
]


class BreakerSettings(SettingsSection):
    """When calls to a service pause because it fails, and when they go on."""

    failure_threshold: int | None = Field(
        None, ge=1, le=100, description="So many failures in `window_seconds` pause calls. Default: 5."
    )
    window_seconds: int | None = Field(
        None, ge=1, le=3600, description="The time in which failures are counted. Default: 60."
    )
    timeout_seconds: int | None = Field(
        None, ge=1, le=3600, description="How long calls pause before some try the service again. Default: 60."
    )
    half_open_max_calls: int | None = Field(None, ge=1, le=100, description="Most of these at once. Default: 10.")
    success_threshold: int | None = Field(
        None, ge=1, le=100, description="So many successes end the pause. Default: 3."
    )

    def to_contract_field(self) -> dict[str, int]:
        """Return what contracts of the service's tools declare; nothing if nothing is set."""
        return self.model_dump(exclude_none=True)


class RetrySettings(SettingsSection):
    """How often a failed attempt is repeated, where that is safe: `retry."list*" = { max_attempts = 5 }`, by globs of
    tools or operations. The first that matches counts.
    """

    max_attempts: int | None = Field(None, ge=1, le=10, description="Most attempts; 1 repeats none. Default: 3.")
    base_seconds: float | None = Field(None, gt=0, le=60, description="First pause. Default: 0.1.")
    backoff_multiplier: float | None = Field(
        None, ge=1, le=10, description="How much longer each further pause is. Default: 2."
    )
    backoff_max_seconds: float | None = Field(None, gt=0, le=300, description="Longest pause. Default: 60.")
    retry_on_status_codes: tuple[Annotated[int, Field(ge=400, le=599)], ...] | None = Field(
        None, description="HTTP statuses after which it is repeated. Default: 429, 500, 502, 503 and 504."
    )

    def to_contract_field(self) -> dict[str, Any]:
        """Return what contracts of the tools declare; nothing if nothing is set."""
        return self.model_dump(exclude_none=True)


class FreshnessSettings(SettingsSection):
    """How old a result of a read may be that is given again: `freshness."get*" = { max_age_seconds = 60 }`, by globs of
    tools or operations. The first that matches counts; results of what is no read are never given again.
    """

    max_age_seconds: int = Field(ge=1, le=30 * 86_400, description="Greatest age of a result that is given again.")
    shared_by: Literal["caller", "tenant"] = Field(
        "caller", description='Who gets it: the same caller, or, where all see the same, everyone (`"tenant"`).'
    )

    def to_contract_field(self) -> dict[str, Any]:
        """Return what contracts of the tools declare."""
        return self.model_dump()


# Of servers and services alike.
RetryByTool = Annotated[
    dict[str, RetrySettings], Field(description="How often failed attempts are repeated, by globs of tools.")
]
FreshnessByTool = Annotated[
    dict[str, FreshnessSettings], Field(description="How old results of reads may be, by globs of tools.")
]


class ServiceLimitSettings(SettingsSection):
    """What is asked of a service: at once, in each gateway and worker, and in a time."""

    max_concurrent: int | None = Field(
        None, ge=1, le=1000, description="Most calls at once. Default: `limits.service_calls_at_once`."
    )
    max_waiting: int | None = Field(
        None, ge=0, le=1000, description="Most calls that wait for their turn. Default: as many as are made at once."
    )
    max_wait_seconds: float | None = Field(
        None, ge=0, le=300, description="How long a call waits for its turn, within its deadline. Default: 5."
    )
    max_calls: int | None = Field(
        None, ge=1, le=1_000_000, description="Most calls in `window_seconds`, counted where limits are counted."
    )
    window_seconds: float | None = Field(
        None, ge=1, le=86_400, description="The time in which at most `max_calls` are made. Default: 60."
    )

    @model_validator(mode="after")
    def _check_rate(self) -> Self:
        if self.window_seconds is not None and self.max_calls is None:
            raise ValueError("window_seconds is the time of max_calls: set max_calls too")
        return self

    def to_contract_field(self) -> dict[str, float] | None:
        """Return what contracts of the service's tools declare; None if nothing is set."""
        return self.model_dump(exclude_none=True) or None


class SharedFolderSettings(SettingsSection):
    """A folder of the host that the program of a server sees in its sandbox: `folders = [{ path = "data" }]`."""

    path: Path = Field(description="The folder, or a file, relative to `folder`. The program sees it at its own path.")
    write: bool = Field(False, description="Whether the program may change it.")


class McpServerSettings(SettingsSection):
    """An MCP server whose tools are served under its name. What the server says about the effects of its tools is not
    trusted: tools listed neither in `reads` nor in `writes` count as destructive.
    """

    name: str = Field(
        pattern=r"^[a-z](?:_?[a-z0-9])*$",
        max_length=48,
        description="Small letters, digits and single underscores, a letter first: the name of the server, and the "
        "namespace of its tools.",
    )
    tenant: str | None = Field(None, description="The tenant it serves. Default: that of `[tools]`.")
    url: str | None = Field(None, description="URL of the server, if it is reached over HTTP.")
    command: tuple[str, ...] = Field(
        (), description="Program and arguments, if the gateway starts the server as a subprocess."
    )
    sha256: Sha256 | None = Field(
        None,
        description="SHA-256 of the program's file. A program with another digest is not started.",
    )
    files: dict[str, Sha256] = Field(
        {},
        description="Other files that the program runs, each with its SHA-256: interpreter, script, modules, whole "
        "folders. `deputize servers pin` prints them. The program is started from verified copies.",
    )
    folder: Path | None = Field(None, description="Working directory of the program. Default: an empty folder.")
    uid: int | None = Field(
        None,
        ge=1,
        le=2**31 - 1,
        description="User id of the program, if the gateway runs as root. Default: another unused one for each server.",
    )
    accept_risk: tuple[Literal["same-user", "unpinned", "unsandboxed"], ...] = Field(
        (),
        description='Risks accepted for this program. `"same-user"`: it can read the keys of the gateway, whose user '
        'it runs as without a sandbox. `"unpinned"`: it is started although files that it runs have no digest. '
        '`"unsandboxed"`: production starts it with `sandbox = false`, with the files and the network of its host.',
    )
    env: dict[str, str] = Field(
        {}, description="Environment of the program. It inherits only PATH and the locale from the gateway."
    )
    credential: Literal["none", "vault", "delegated", "link", "client"] = Field(
        "none",
        description="Credential of calls: none, the tenant's `secret` (`vault`), a token minted for `audience` "
        "(`delegated`), the user's linked account (`link`), or the gateway's own OAuth client (`client`).",
    )
    secret: str | None = Field(
        None,
        description="Name of the tenant's secret, for `vault`. With `client_id`: name of the client's secret or key.",
    )
    audience: str | None = Field(None, description="Audience of minted tokens, for `delegated`.")
    issuer: str | None = Field(
        None, description="Authorization server, for `link` and `client`. Default: the one that the server names."
    )
    client_id: str | None = Field(
        None, description="OAuth client of this gateway at `issuer`. Unset, it registers itself, for `link`."
    )
    header: HeaderName = Field(
        "Authorization", description="Header with the credential; in Authorization, it is sent as a bearer token."
    )
    secret_env: str | None = Field(None, description="Environment variable that gives a program its credential.")
    tools: tuple[str, ...] = Field(("*",), description="Tools to serve, as globs over the server's own names.")
    resources: tuple[str, ...] = Field((), description="Resources and templates to serve, as globs over their URIs.")
    prompts: tuple[str, ...] = Field((), description="Prompts to serve, as globs over their names.")
    reads: tuple[str, ...] = Field((), description="Tools that change nothing, as globs.")
    writes: tuple[str, ...] = Field((), description="Tools whose changes can be undone, as globs.")
    repeatable: tuple[str, ...] = Field(
        (), description="Tools that are safe to repeat because the server deduplicates equal calls, as globs."
    )
    slow: tuple[str, ...] = Field((), description="Tools that may take minutes, as globs.")
    facts: Facts = Field({})
    record_arguments: RecordArguments = False
    scopes: tuple[str, ...] = Field((), description="Scopes that callers of its tools need.")
    service_limits: ServiceLimitSettings = Field(
        ServiceLimitSettings(), description="How many of its calls are made at once, and how long others wait."
    )
    breaker: BreakerSettings = Field(
        BreakerSettings(), description="When calls pause because it fails, and when they go on."
    )
    retry: RetryByTool = Field({})
    freshness: FreshnessByTool = Field({})
    input_requests: tuple[CapabilityFamily, ...] = Field(
        (), description="What it may request from callers during a call. Any other request fails the call."
    )
    review: Literal["changes", "everything"] = Field(
        "changes", description='What an administrator must accept: `"changes"`, or also what it offers at first.'
    )
    start_seconds: float = Field(
        15.0,
        gt=0,
        le=120,
        description="Timeout for starting and initializing the server. `npx`, `uvx` and `bunx` get five minutes more "
        "the first time, to download it.",
    )
    probe_seconds: float = Field(60.0, ge=1, le=3600, description="How often its definitions are checked for changes.")
    recheck_seconds: float = Field(
        30.0, ge=0, le=3600, description="Most time between a check of its definitions and a call that changes data."
    )
    sandbox: bool = Field(
        True,
        description="Whether the program runs in a sandbox, where it sees what it runs, `folders`, an empty `/tmp`, "
        "`env` and its credential, and reaches only `hosts`. It is not started where there is none: "
        "`deputize sandboxes check` says what to change on a host. `false` is for programs that you trust; in "
        'production, it needs `accept_risk = ["unsandboxed"]`.',
    )
    folders: tuple[SharedFolderSettings, ...] = Field(
        (), max_length=50, description="Folders that the program sees in its sandbox."
    )
    hosts: tuple[Target, ...] = Field(
        (),
        max_length=100,
        description='Hosts that the program may connect to from its sandbox, as in `"api.example.com:443"`: over TLS '
        "and a proxy that `HTTPS_PROXY` names. Unset, it has no network.",
    )
    private_hosts: tuple[Target, ...] = Field(
        (),
        max_length=100,
        description="Further hosts, which may be in a private network or on this machine. A name in `hosts` leads to "
        "public addresses alone, because others decide to which address it leads.",
    )
    memory_mb: int = Field(1024, ge=64, le=65_536, description="Memory limit of a program, in megabytes.")
    open_files: int = Field(256, ge=16, le=65_536, description="Most open files of a program.")
    processes: int = Field(
        64,
        ge=8,
        le=4096,
        description="Most processes and threads of a program in a sandbox; a browser needs 300.",
    )

    @field_validator("accept_risk", mode="before")
    @classmethod
    def _accept_one_risk(cls, risks: object) -> object:
        return (risks,) if isinstance(risks, str) else risks

    @model_validator(mode="before")
    @classmethod
    def _leave_urls_without_sandbox(cls, values: Any) -> Any:
        has_program = not isinstance(values, dict) or values.get("command")
        return values if has_program else {"sandbox": False, **values}

    @model_validator(mode="after")
    def _check_transport(self) -> Self:
        if (self.url is None) == (not self.command):
            raise ValueError("set either url or command")
        require_http_url(self.url)
        if self.credential == "vault" and self.secret is None:
            raise ValueError('credential = "vault" needs the name of a secret: set secret')
        if self.credential == "delegated" and self.audience is None:
            raise ValueError('credential = "delegated" needs the audience of its tokens: set audience')
        if self.credential == "delegated" and self.command:
            raise ValueError(
                'credential = "delegated" mints one token per call, and a program gets its credential only when it '
                'starts: set url instead of command, or use credential = "vault"'
            )
        if self.command and self.credential != "none" and self.secret_env is None:
            raise ValueError("a program gets its credential in an environment variable: set secret_env to its name")
        return self

    @model_validator(mode="after")
    def _check_sandbox(self) -> Self:
        name = "folders" if self.folders else "hosts" if self.hosts else "private_hosts"
        is_limited = bool(self.folders or self.hosts or self.private_hosts)
        if not self.command and (is_limited or self.sandbox):
            raise ValueError(f"a sandbox is for programs: set command, or remove {name if is_limited else 'sandbox'}")
        if self.command and self.sandbox and self.uid is not None:
            raise ValueError(
                "this program runs in a sandbox, whose supervisor chooses its user: remove uid, or set sandbox = false "
                "if you trust the program"
            )
        if is_limited and not self.sandbox:
            raise ValueError(f"a program without a sandbox reaches all {name}: remove sandbox = false, or {name}")
        return self

    @model_validator(mode="after")
    def _check_sign_in(self) -> Self:
        signs_in, parts = self.credential in ("link", "client"), urlsplit(self.url or "")
        if signs_in and parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError(f'credential = "{self.credential}" needs a url with https, or on this machine')
        if not signs_in and (self.issuer is not None or self.client_id is not None):
            raise ValueError('issuer and client_id need credential = "link" or "client"')
        if self.credential == "client" and (self.client_id is None or self.secret is None):
            raise ValueError('credential = "client" needs client_id and secret')
        if self.credential == "link" and self.secret is not None and self.client_id is None:
            raise ValueError("secret belongs to an OAuth client: set client_id too")
        if self.client_id is not None and self.issuer is None:
            # A client's secret goes only to the authorization server it is registered at, never to one a server names.
            raise ValueError("client_id belongs to one authorization server: set issuer too")
        return self
