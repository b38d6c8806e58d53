"""Define where the secrets of tools are stored: `[vault]`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from deputize.core.settings.base import SettingsSection


class VaultSettings(SettingsSection):
    """The vault with the secrets of tools."""

    kind: Literal["local", "openbao"] = Field(
        "local", description="Where secrets are stored: encrypted in the gateway's database, or in OpenBao or Vault."
    )
    address: str | None = Field(None, description="URL of the OpenBao or Vault server.")
    token_file: Path | None = Field(None, description="File with the token for that server, read at every use.")
    mount: str = Field("secret", description="Path of the key-value mount (version 2) with the secrets.")
    seconds: float = Field(2.0, gt=0, le=30, description="Timeout of the vault; without its answer the call fails.")
