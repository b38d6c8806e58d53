"""Define the database, the leases in it and the key that protects it: `[database]`, `[timing]` and `[keys]`."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr

from deputize.core.patterns import matches_glob
from deputize.core.settings.base import SettingsSection


class AuditRetention(SettingsSection):
    """How long audit entries of some tenants are kept. Put data that the law treats differently into tenants apart."""

    tenants: str = Field(description="Tenants it applies to, as a glob. The first that matches counts.")
    days: int = Field(ge=365, le=2557, description="Days until their audit entries are deleted, one to seven years.")


class DatabaseSettings(SettingsSection):
    """The PostgreSQL database."""

    url: SecretStr | None = Field(
        None, description="URL of the PostgreSQL database. Unset, `deputize dev` starts a local one."
    )
    direct_url: SecretStr | None = Field(
        None, description="URL of the same database without a connection pooler, for LISTEN and locks. Default: `url`."
    )
    migration_url: SecretStr | None = Field(
        None,
        description="URL with the login that owns the schema, for `deputize migrate` alone. Set it in that command's "
        "environment: `serve` and `work` refuse to start if they can read it. Default: `direct_url`, then `url`.",
    )
    lineage_folder: Path | None = Field(
        None,
        description="Folder that outlives the database, with small files in which this gateway records what it "
        "committed, so that it notices a database that went back in time. Default: `lineage` in `folder`.",
    )
    read_connections: int = Field(8, ge=1, le=200, description="Connections for reads. Writes use two more.")
    batch_rows: int = Field(500, ge=1, le=5000, description="Most rows in one group commit.")
    max_waiting_rows: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Most records of one process that wait for their commit. Further calls are refused with E3803.",
    )
    retention_days: int = Field(
        30,
        ge=1,
        le=3650,
        description="Days until the encrypted arguments and results of calls are deleted, and delegations that ended.",
    )
    result_hours: int = Field(
        24,
        ge=1,
        le=8760,
        description="Hours until the reference to a result that was too long or too sensitive to be given whole "
        "expires, and the result is deleted. That of a call that changes something lasts at least as long as its "
        "outcome is replayed.",
    )
    journal_days: int = Field(
        90,
        ge=30,
        le=3650,
        description="Days until the journal forgets what a call changed and how it is taken back. No contract promises "
        "a longer time to compensate than the 30 days that are the least here.",
    )
    decision_days: int = Field(
        365,
        ge=30,
        le=3650,
        description="Days until a decision record that no call relied on since is deleted. Backtests reach no further.",
    )
    audit_days: int = Field(
        2557,
        ge=365,
        le=2557,
        description="Days until audit entries are deleted, one to seven years. The hashes stay, so that the log can "
        "still be verified; a legal hold keeps them longer.",
    )
    audit_retention: tuple[AuditRetention, ...] = Field((), description="Tenants with another `audit_days`.")

    def get_audit_days(self, tenant: str) -> int:
        """Get how many days the audit entries of a tenant are kept."""
        return next((each.days for each in self.audit_retention if matches_glob(tenant, each.tenants)), self.audit_days)


class TimingSettings(SettingsSection):
    """Leases, sweeps and clocks."""

    lease_seconds: Annotated[float, Field(gt=0.5, le=300)] = Field(
        10.0, description="How long the lease of a process lasts without a heartbeat."
    )
    sweep_seconds: Annotated[float, Field(gt=0.05, le=60)] = Field(
        1.0, description="How often the sweeper looks for calls whose process died."
    )
    margin_seconds: Annotated[float, Field(ge=0, le=60)] = Field(
        2.0,
        description="Extra time after the lease and the tool's timeout before such a call is recorded as UNKNOWN.",
    )
    refresh_seconds: Annotated[float, Field(gt=0.05, le=60)] = Field(
        0.5, description="How often caches are checked for changes whose notification was lost."
    )
    max_clock_skew_seconds: Annotated[float, Field(gt=0, le=300)] = Field(
        30.0, description="Largest difference from PostgreSQL's clock; beyond it `/readyz` reports not ready."
    )


class KeySettings(SettingsSection):
    """The encryption key of this gateway."""

    master_file: Path = Field(
        Path(".deputize/master.key"),
        description="File with the 32-byte key that encrypts each tenant's keys. `deputize dev` creates it.",
    )
    accepted_master_files: tuple[Path, ...] = Field(
        (),
        description="Files with other master keys that are accepted while the master key is rotated: the new one "
        "before it is used, the old one until `deputize keys rotate master` is done.",
    )
