"""Define what the tools that come with the gateway may reach: `[builtin]`. A group without its table is off."""

from pathlib import Path

from pydantic import Field

from deputize.core.settings.base import SettingsSection


class FilesSettings(SettingsSection):
    """The tools `files.*`."""

    folder: Path = Field(
        description="The folder whose files they read and change, and nothing outside of it. It must exist, and "
        "must not contain the project, or share a folder with its tools, manifests, policies, hooks or keys."
    )


class BuiltinSettings(SettingsSection):
    """Tools that come with the gateway; each is off without its table."""

    files: FilesSettings | None = Field(None, description="Reading and changing files.")
