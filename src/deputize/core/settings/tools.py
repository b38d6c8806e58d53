"""Define which tools are registered at start, and the hooks around their calls: `[tools]` and `[[hooks]]`."""

from pydantic import Field

from deputize.core.settings.base import SettingsSection


class ToolSettings(SettingsSection):
    """Tools of the project."""

    python: tuple[str, ...] = Field((), description="Python files with `@tool` functions, as globs.")
    manifests: tuple[str, ...] = Field((), description="YAML or JSON manifests of tools, as globs.")
    tenant: str = Field("dev", description="The tenant these tools are registered for.")
    shared_with: tuple[str, ...] = Field(
        (), description="Other tenants, as globs, whose administrators may register tools on these functions."
    )


class HookSettings(SettingsSection):
    """A function of your own that runs before, after or on failure of calls."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,47}$", description="Name of the hook in audit entries.")
    function: str = Field(description="The function as `file.py:function`, in the project folder.")
    tools: str = Field("*", description="Tools it runs for, as a glob over full names.")
    seconds: float = Field(1.0, gt=0, le=60, description="Timeout of the hook; a hook that exceeds it stops the call.")
