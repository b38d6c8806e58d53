"""Define how programs are isolated: `[sandboxes]`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from deputize.core.settings.base import SettingsSection

Weakness = Literal["weak_limits", "unsandboxed_code"]


class SandboxSettings(SettingsSection):
    """Sandboxes of this host, for `[[servers]]` with `command`, commands, programs of `code.run`, and more.

    `deputize sandboxes check` tries them.
    """

    folder: Path | None = Field(
        None,
        description="Folder of the supervisor that starts sandboxes, the same for all gateways of a host. "
        "Default: `/run/deputize/sandboxes` for root, otherwise a folder of the user.",
    )
    backend: Literal["namespaces", "gvisor"] = Field(
        "namespaces",
        description="The weakest wall that any program may have, whatever its contract says: `namespaces` of the "
        "kernel, or `gvisor`, a kernel of its own, which needs `runsc` on each host. With `gvisor`, programs reach no "
        "hosts.",
    )
    accept: tuple[Weakness, ...] = Field(
        (),
        description="Weaknesses that are accepted in production: `weak_limits`, if control groups are not writable, so "
        "that memory is limited for each process and not for all of a sandbox, and processor time only by the timeout; "
        "`unsandboxed_code`, if programs of `code.run` may run on their interpreter alone, and git of `git.*` may read "
        "as the gateway, where this host cannot start sandboxes.",
    )
