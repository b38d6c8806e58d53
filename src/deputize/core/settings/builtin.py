"""Define what the tools that come with the gateway may reach: `[builtin]`. A group without its table is off."""

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, SecretStr, StringConstraints, model_validator

from deputize.core.settings.base import SettingsSection

_NAME_PATTERN: Final = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[1-9][0-9]{0,4})?$"
_HOST_PATTERN: Final = r"^(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[1-9][0-9]{0,4})?$"


class FilesSettings(SettingsSection):
    """The tools `files.*`."""

    folder: Path = Field(
        description="The folder whose files they read and change, and nothing outside of it. It must exist, and "
        "must not contain the project, or share a folder with its tools, manifests, policies, hooks or keys."
    )


class SqlSettings(SettingsSection):
    """The tools `sql.*`. They need `deputize[sql]`."""

    url: SecretStr = Field(
        description="URL of the PostgreSQL database, with a login that can only read: one that may change anything is "
        "refused. Set it in the environment, as `DEPUTIZE_BUILTIN__SQL__URL`. Or `sqlite:///` and the path of a SQLite "
        "database, which is opened read-only; its tables are `main.*`."
    )
    tables: tuple[Annotated[str, StringConstraints(pattern=r"^[^.\s]{1,63}\.[^.]{1,63}$")], ...] = Field(
        ("public.*",),
        min_length=1,
        max_length=500,
        description="Tables and views that statements may name, as `schema.table` or `schema.*`.",
    )
    functions: tuple[Annotated[str, StringConstraints(pattern=r"^[^.\s]{1,63}\.[^.]{1,63}$")], ...] = Field(
        (),
        max_length=500,
        description="Functions of your own that statements may call, as `schema.function`, beside those of PostgreSQL "
        "that only compute.",
    )
    samples: bool = Field(
        False,
        description="Show a few values of each column, with letters as x and digits as 9, when tables are described.",
    )
    seconds: float = Field(5.0, gt=0, le=60, description="How long one call may take in the database.")
    max_cost: float = Field(
        1_000_000.0,
        gt=0,
        description="Highest cost that PostgreSQL's planner may estimate; a statement above is not run.",
    )
    change_url: SecretStr | None = Field(
        None,
        description="URL of the same database with another login, for `sql.change`: one that may change rows of "
        "`change_tables` and nothing else. Set it in the environment, as `DEPUTIZE_BUILTIN__SQL__CHANGE_URL`. Default: "
        "none, so that nothing can be changed.",
    )
    change_tables: tuple[Annotated[str, StringConstraints(pattern=r"^[^.\s*]{1,63}\.[^.*]{1,63}$")], ...] = Field(
        (), max_length=100, description="Tables whose rows `sql.change` may change, as `schema.table`."
    )
    scratch_url: SecretStr | None = Field(
        None,
        description="URL of another PostgreSQL database with the same schema and nothing of worth, with the login that "
        "owns it: there `sql.migration` tries statements, and rolls them back. Set it in the environment, as "
        "`DEPUTIZE_BUILTIN__SQL__SCRATCH_URL`. Default: none, so that nothing can be planned.",
    )

    @property
    def sqlite_path(self) -> Path | None:
        """The file, if it is a SQLite database."""
        scheme, separator, path = self.url.get_secret_value().partition("sqlite:///")
        return Path(path) if separator and not scheme else None

    @model_validator(mode="after")
    def _check_changes(self) -> Self:
        if self.sqlite_path is not None and (self.change_url or self.scratch_url or self.functions):
            raise ValueError("a SQLite database is only read: remove change_url, scratch_url and functions")
        if (self.change_url is None) != (not self.change_tables):
            raise ValueError("change_url and change_tables need each other: set both, or none")
        return self


class GitSettings(SettingsSection):
    """The tools `git.*`. They need git 2.35 or newer."""

    repository: Path = Field(
        description="The repository that agents read, and begin branches of their own from. Its configuration, hooks "
        "and attributes are not used, and its checkout is never changed."
    )
    remote: Path | None = Field(
        None,
        description="Folder of the repository that approved pushes hand `agent/…` branches to; by default, "
        "`repository` itself.",
    )
    require: tuple[Literal["build", "test", "lint", "typecheck"], ...] = Field(
        (),
        max_length=4,
        description='Commands of `[builtin.build]`, as `["test", "lint"]`: a branch is pushed only if each passed on '
        "exactly the files of its head.",
    )


_Command = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1, max_length=1_000, pattern=r"^[^\x00]*$")], ...],
    Field(min_length=1, max_length=100),
]


class BuildSettings(SettingsSection):
    """The tools `build.*`. They need sandboxes, and `[builtin.files]` or `[builtin.git]`, whose files they work on."""

    build: _Command | None = Field(
        None, description='What `build.build` runs: the program and its arguments, as `["/usr/bin/make", "all"]`.'
    )
    test: _Command | None = Field(None, description="What `build.test` runs.")
    lint: _Command | None = Field(None, description="What `build.lint` runs.")
    typecheck: _Command | None = Field(None, description="What `build.typecheck` runs.")
    folders: tuple[Path, ...] = Field(
        (), max_length=20, description="Folders that programs see beside `/usr` and cannot change, such as a toolchain."
    )
    environment: dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")],
        Annotated[str, StringConstraints(max_length=8_000, pattern=r"^[^\x00]*$")],
    ] = Field({}, max_length=50, description="Their environment, beside `HOME`: names have letters, digits and `_`.")
    seconds: float = Field(240.0, gt=0, le=290, description="How long one may take.")
    memory_mb: int = Field(2_048, ge=64, le=65_536, description="How much memory one may use.")

    @property
    def commands(self) -> dict[str, tuple[str, ...]]:
        """The commands by the names of their tools."""
        named = {"build": self.build, "test": self.test, "lint": self.lint, "typecheck": self.typecheck}
        return {name: command for name, command in named.items() if command is not None}

    @model_validator(mode="after")
    def _require_command(self) -> Self:
        if not self.commands:
            raise ValueError("name a command under [builtin.build]: build, test, lint or typecheck")
        return self


_PrivateHosts = Annotated[
    tuple[Annotated[str, StringConstraints(pattern=_NAME_PATTERN, max_length=259)], ...],
    Field(
        max_length=100,
        description="Further hosts, which may be in a private network and without TLS, as `wiki.internal`, or with a "
        "port.",
    ),
]


class WebSettings(SettingsSection):
    """The tools `web.fetch` and `web.search`. Other hosts are out of their reach, also by a redirect."""

    hosts: tuple[Annotated[str, StringConstraints(pattern=_HOST_PATTERN, max_length=259)], ...] = Field(
        (),
        max_length=500,
        description="Hosts whose pages agents may read, as `docs.example.com`, `*.example.com` for every host below "
        "it, or with a port; over https, and only at public addresses.",
    )
    private_hosts: _PrivateHosts = ()
    max_bytes: int = Field(
        1_048_576, ge=1_024, le=4_194_304, description="How large a page may be; a larger one is refused."
    )
    seconds: float = Field(20.0, gt=0, le=60, description="How long one page may take, with its redirects.")
    search_url: str | None = Field(
        None,
        pattern=r"^https?://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[1-9][0-9]{0,4})?/[!$-;=?-\[\]_a-z~]*$",
        max_length=500,
        description="Where `web.search` asks, as `https://search.example.com/search`: a search engine that answers as "
        "SearXNG does in JSON. Its host may be private.",
    )
    search_header: str | None = Field(
        None,
        pattern=r"^[A-Za-z][A-Za-z0-9-]{0,63}$",
        description="Header with the key of the search engine, which is the secret `web-search` of the vault: "
        "`Authorization`, where it is a bearer token, or another.",
    )

    @model_validator(mode="after")
    def _require_hosts(self) -> Self:
        if not self.hosts and not self.private_hosts and self.search_url is None:
            raise ValueError('name a host under [builtin.web]: hosts = ["docs.example.com"]')
        if self.search_header is not None and self.search_url is None:
            raise ValueError("search_header is a header to search_url: set search_url too")
        if self.search_header is not None and self.search_header.lower() in ("host", "accept", "cookie"):
            raise ValueError("search_header is the header of a key: name another one")
        return self


class BrowserSettings(SettingsSection):
    """The tools `browser.*`. They need sandboxes and Chromium. Other hosts are out of the browser's reach."""

    hosts: tuple[Annotated[str, StringConstraints(pattern=_HOST_PATTERN, max_length=259)], ...] = Field(
        (),
        max_length=500,
        description="Hosts that pages may connect to, as `shop.example.com`, `*.example.com` for every host below it, "
        "or with a port; over https, and only at public addresses. Name those of styles and scripts, too.",
    )
    private_hosts: _PrivateHosts = ()
    seconds: float = Field(45.0, gt=0, le=80, description="How long one call may take, with the start of a browser.")
    sessions: int = Field(
        2, ge=1, le=8, description="How many sessions one caller may have at once; a further one ends the oldest."
    )
    session_minutes: int = Field(15, ge=1, le=240, description="How long after its begin a session can be used.")
    memory_mb: int = Field(1_024, ge=512, le=8_192, description="How much memory the browser of a session may use.")

    @model_validator(mode="after")
    def _require_hosts(self) -> Self:
        if not self.hosts and not self.private_hosts:
            raise ValueError('name a host under [builtin.browser]: hosts = ["shop.example.com"]')
        return self


class CodeSettings(SettingsSection):
    """The tool `code.run`. It needs `deputize[code]`."""

    tools: tuple[
        Annotated[str, StringConstraints(pattern=r"^[a-z](_?[a-z0-9])*\.(\*|[a-z](_?[a-z0-9])*)$", max_length=97)], ...
    ] = Field(
        (),
        max_length=500,
        description="Tools that programs may call, as `namespace.name` or `namespace.*`. Each call is also decided as "
        "any call of the program's caller. Default: none, so that programs only compute.",
    )
    seconds: float = Field(
        10.0,
        gt=0,
        le=60,
        description="How long one program may compute, without the time that its calls take. After each call it runs "
        "from its beginning again, which counts.",
    )
    memory_mb: int = Field(32, ge=1, le=256, description="How much memory its values may take.")
    calls: int = Field(50, ge=0, le=100, description="How many calls one program may make.")
    sessions: int = Field(
        4, ge=0, le=100, description="How many sessions, which keep variables, one caller may have at once; 0 for none."
    )
    session_minutes: int = Field(60, ge=1, le=1_440, description="How long after its begin a session can be used.")


class BuiltinSettings(SettingsSection):
    """Tools that come with the gateway; each is off without its table."""

    files: FilesSettings | None = Field(None, description="Reading and changing files.")
    git: GitSettings | None = Field(None, description="Reading a repository, and working on branches of it.")
    build: BuildSettings | None = Field(None, description="Building and testing what agents wrote.")
    sql: SqlSettings | None = Field(None, description="Reading a PostgreSQL or SQLite database, and changing its rows.")
    web: WebSettings | None = Field(None, description="Reading pages of the web.")
    browser: BrowserSettings | None = Field(None, description="Reading pages with a browser, and acting on them.")
    code: CodeSettings | None = Field(None, description="Running programs that call tools.")

    @property
    def required_commands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The commands that have to pass before a push, by their names."""
        commands = {} if self.build is None else self.build.commands
        return tuple((name, commands[name]) for name in dict.fromkeys(() if self.git is None else self.git.require))

    @model_validator(mode="after")
    def _require_commands(self) -> Self:
        commands = {} if self.build is None else self.build.commands
        for name in () if self.git is None else self.git.require:
            if name not in commands:
                raise ValueError(
                    f"builtin.git.require names {name}, which has no command, so nothing could be pushed: set {name} "
                    "under [builtin.build], or leave it out"
                )
        return self
