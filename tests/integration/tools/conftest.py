"""Share the host of a gateway's user among the tests of tools that run in sandboxes."""

from tests.support.sandbox_host import gateway_host

__all__ = ["gateway_host"]
