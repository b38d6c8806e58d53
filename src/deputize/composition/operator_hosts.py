"""Collect the hosts that the operator named."""

from urllib.parse import urlsplit

from deputize.core.settings import Settings
from deputize.govern.identity.jwks import list_issuer_hosts


def collect_operator_hosts(settings: Settings) -> frozenset[str]:
    """Collect the hosts in the operator's settings: only those may be private addresses."""
    operator_urls = (each.jwks_url for each in settings.identity.operators)
    witness_urls = (each.url for each in settings.log.witnesses)
    urls = (settings.policy.authzen_url, settings.vault.address, settings.console.issuer, *operator_urls, *witness_urls)
    hosts = (urlsplit(url).hostname for url in (*urls, *(each.url for each in settings.servers)) if url)
    return list_issuer_hosts(settings.identity.issuers) | frozenset(host for host in hosts if host)
