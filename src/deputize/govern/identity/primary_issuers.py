"""Decide once which issuer's subjects a tenant stores by their bare names; those of other issuers are qualified.

The first gateway that meets the tenant decides by its settings, never by a token. The decision is a row that no
gateway changes, so that names keep their meaning when issuers are added, removed or listed in another order.
"""

from collections.abc import Sequence

from deputize.core.settings import IssuerSettings
from deputize.govern.identity.claims import can_speak_for
from deputize.store.pool import Connection, Store
from deputize.store.queries import load_statements
from deputize.store.tenants import ensure_tenant

_SQL = load_statements("identity")


class PrimaryIssuers:
    """The primary issuers of the tenants that this process has met."""

    def __init__(self, store: Store, issuers: Sequence[IssuerSettings]) -> None:
        self._store = store
        self._issuers = issuers
        self._cache: dict[str, str] = {}

    async def get(self, tenant: str) -> str | None:
        """Return the tenant's primary issuer, and choose it if that was not done yet."""
        if tenant in self._cache:
            return self._cache[tenant]
        candidate = choose_primary_issuer(self._issuers, tenant)
        async with self._store.write_transaction() as connection:
            issuer = await load_primary_issuer(connection, tenant)
            if issuer is None and candidate is not None:
                await ensure_tenant(connection, tenant)
                await connection.execute(_SQL["insert_primary_issuer"], tenant, candidate)
                # Read back: another gateway may have been first.
                issuer = await load_primary_issuer(connection, tenant)
        if issuer is not None:
            self._cache[tenant] = issuer
        return issuer


async def load_primary_issuer(connection: Connection, tenant: str) -> str | None:
    """Load the issuer whose subjects are stored by their bare names."""
    issuer: str | None = await connection.fetchval(_SQL["load_primary_issuer"], tenant)
    return issuer


def choose_primary_issuer(issuers: Sequence[IssuerSettings], tenant: str) -> str | None:
    """Choose by the settings: the first issuer of just this tenant, else that of development, else the first of all."""
    names = list_subject_issuers(sorted(issuers, key=lambda each: (each.tenant is None, not each.development)), tenant)
    return names[0] if names else None


def list_subject_issuers(issuers: Sequence[IssuerSettings], tenant: str) -> list[str]:
    """List the issuers whose subjects may be users of a tenant, in the order of the settings."""
    return list(dict.fromkeys(get_subject_issuer(each) for each in issuers if can_speak_for(each, tenant)))


def get_subject_issuer(issuer: IssuerSettings) -> str:
    """Return the issuer that the subjects of an issuer's tokens belong to."""
    return issuer.same_subjects_as or issuer.issuer
