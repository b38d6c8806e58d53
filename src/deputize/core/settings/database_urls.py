"""Read the URL of a database, which may name several hosts."""

from urllib.parse import urlencode, urlsplit

_DEFAULT_PORT = "5432"


def list_hosts(url: str) -> list[tuple[str, str]]:
    """List the hosts and ports that a URL names before its path, such as `a:5432,b:5432`."""
    hosts = []
    for each in urlsplit(url).netloc.rpartition("@")[2].split(","):
        # The colons of an IPv6 address are in brackets.
        host, _, port = each.rpartition(":") if ":" in each.rpartition("]")[2] else (each, "", "")
        if host:
            hosts.append((host.strip("[]"), port or _DEFAULT_PORT))
    return hosts


def separate_hosts(url: str) -> str:
    """Move several hosts into the query, `?host=a,b&port=5432,5432`: the form that libpq and SQLAlchemy both read."""
    hosts = list_hosts(url)
    if len(hosts) < 2:
        return url
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    addresses = {"host": ",".join(host for host, _ in hosts), "port": ",".join(port for _, port in hosts)}
    query = urlencode(addresses, safe=",:/")
    return parts._replace(netloc=login + at, query="&".join(filter(None, (parts.query, query)))).geturl()
