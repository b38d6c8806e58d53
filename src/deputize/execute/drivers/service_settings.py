"""Find the settings of the service that a contract's operation belongs to."""

from collections.abc import Mapping
from typing import TypeVar

from deputize.core.contract.contract import Contract
from deputize.core.errors import ToolRequiresSetup
from deputize.core.settings import ServiceSettings
from deputize.execute.network_policy import require_reachable

Connection = TypeVar("Connection")


def require_service(
    services: Mapping[tuple[str, str], tuple[ServiceSettings, Connection]],
    contract: Contract,
    *,
    tenant: str,
    name: str,
    server_url: str | None,
    endpoint: int = 0,
) -> tuple[ServiceSettings, Connection]:
    """Return a service's settings and its connection, if the contract was made for these settings and may reach the
    endpoint.

    Both must agree on the URL and the credential, so that an old contract or old settings cannot send a secret to
    another host.
    """
    service = services.get((tenant, name))
    if service is None:
        raise ToolRequiresSetup(
            f"{contract.full_name} is an operation of the service {name}, which is not in the settings",
            details={"service": name, "setting": "services"},
            advice=f"Add the service {name} to [[services]] in deputize.toml, and restart the gateway.",
            nothing_happened=True,
        )
    settings, auth = service[0], contract.auth
    is_same_credential = auth.credential == "none" or (auth.credential, auth.secret or auth.audience) == (
        settings.credential,
        settings.secret if settings.credential == "vault" else settings.audience,
    )
    request = contract.handler.request
    further_secrets = {each.secret for each in (request and request.further_credentials) or ()}
    is_same_credential = is_same_credential and further_secrets <= {*settings.further_secrets.values()}
    if server_url != settings.url or not is_same_credential:
        raise ToolRequiresSetup(
            f"the url or the credential of the service {name} in the settings differs from the one that "
            f"{contract.full_name} {contract.version} was registered with",
            details={"service": name, "setting": "services"},
            advice="Restart every gateway and worker with the same settings.",
            nothing_happened=True,
        )
    require_reachable(contract, settings.urls[endpoint])
    return service
