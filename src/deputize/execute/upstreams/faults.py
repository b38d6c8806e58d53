"""Tell apart why a service cannot be used: its own failures, and reasons that it is not responsible for."""

from deputize.core.errors import UpstreamUnavailable


class UpstreamNotAtFault(UpstreamUnavailable):
    """The service cannot be used, and its health is not the reason.

    This gateway is stopping or too busy, or the service is there and lacks what was requested.
    """
