"""HAProxy in front of gateways, as the page about production sets it up: it asks each whether it is ready."""

from collections.abc import Sequence
from typing import Final

from proofs.kit.gateway import GatewayHandle
from proofs.kit.sandbox import Sandbox

_SETTINGS = """
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
    option httpchk GET /readyz
    default-server check inter 500ms fall 2 rise 1
frontend calls
    bind 127.0.0.1:{port}
    default_backend gateways
backend gateways
{servers}
"""
# Gateways drain for longer than the balancer takes to notice that they are not ready.
DRAIN_SECONDS: Final = 3
SETTLE_SECONDS: Final = 1.5


async def start_balancer(sandbox: Sandbox, gateways: Sequence[GatewayHandle]) -> str:
    """Start HAProxy in front of the gateways; return its URL."""
    port = sandbox.pick_free_port()
    servers = "\n".join(f"    server {each.name} {each.url.removeprefix('http://')}" for each in gateways)
    file = sandbox.folder / "haproxy.cfg"
    file.write_text(_SETTINGS.format(port=port, servers=servers))
    url = f"http://127.0.0.1:{port}"
    await sandbox.start_process("haproxy", ["haproxy", "-db", "-f", str(file)], ready_url=f"{url}/readyz")
    return url
