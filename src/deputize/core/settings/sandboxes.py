"""Define how programs are isolated: `[sandboxes]`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from deputize.core.settings.base import SettingsSection


class SandboxSettings(SettingsSection):
    """Sandboxes of this host, in which `[[servers]]` with `sandbox` run. `deputize sandboxes check` tries them."""

    folder: Path | None = Field(
        None,
        description="Folder of the supervisor that starts sandboxes, the same for all gateways of a host. "
        "Default: `/run/deputize/sandboxes` for root, otherwise a folder of the user.",
    )
    accept: tuple[Literal["weak_limits"], ...] = Field(
        (),
        description="Weaknesses that are accepted in production: `weak_limits`, if control groups are not writable, so "
        "that memory is limited for each process and not for all of a sandbox, and processes and processor time only "
        "by the timeout.",
    )
