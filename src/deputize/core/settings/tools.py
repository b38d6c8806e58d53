"""Define which tools are registered at start, and the hooks around their calls: `[tools]` and `[[hooks]]`."""

from pathlib import Path

from pydantic import Field

from deputize.core.settings.base import SettingsSection


class TrustedTester(SettingsSection):
    """Another gateway, or another tenant of this one, whose signed results of contract tests are accepted."""

    issuer: str = Field(
        min_length=1,
        max_length=400,
        description="Issuer of the signature, as in `https://staging.example.com/t/dev`.",
    )
    jwks_file: Path | None = Field(
        None, description="File with the issuer's JWK Set; not needed for another tenant of this gateway."
    )


class ContractTestSettings(SettingsSection):
    """Results of contract tests."""

    must_pass: bool = Field(
        False, description="Register new versions of your own tools only after a passed test of the same contract."
    )
    max_age_seconds: int = Field(
        604_800, ge=60, le=365 * 86_400, description="How old a passed test may be when its version is registered."
    )
    testers: tuple[TrustedTester, ...] = Field((), description="Who else may test tools for this gateway.")
    notify_group: str = Field(
        "platform",
        min_length=1,
        max_length=255,
        description="Group in `approvals.notify` that is notified when a tool's test turns red or sources disagree, "
        "beside `owners/NAMESPACE`.",
    )


class ToolSettings(SettingsSection):
    """Tools of the project."""

    python: tuple[str, ...] = Field((), description="Python files with `@tool` functions, as globs.")
    manifests: tuple[str, ...] = Field((), description="YAML or JSON manifests of tools, as globs.")
    tenant: str = Field("dev", description="The tenant these tools are registered for.")
    shared_with: tuple[str, ...] = Field(
        (), description="Other tenants, as globs, whose administrators may register tools on these functions."
    )
    tests: ContractTestSettings = Field(ContractTestSettings(), description="Contract tests of your own tools.")


class HookSettings(SettingsSection):
    """A function of your own that runs before, after or on failure of calls."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_-]{0,47}$",
        description="Name of the hook in audit entries: small letters, digits, `-` and `_`, a letter first.",
    )
    function: str = Field(description="The function as `file.py:function`, in the project folder.")
    tools: str = Field("*", description="Tools it runs for, as a glob over full names.")
    seconds: float = Field(1.0, gt=0, le=60, description="Timeout of the hook; a hook that exceeds it stops the call.")
