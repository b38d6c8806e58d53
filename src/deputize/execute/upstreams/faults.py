"""Tell apart why a service cannot be used: its own failures, and reasons that it is not responsible for."""

from deputize.core.errors import ResultInvalid, UpstreamUnavailable


class UpstreamNotAtFault(UpstreamUnavailable):
    """The service cannot be used, and its health is not the reason.

    This gateway is stopping or too busy, or the service is there and lacks what was requested.
    """


class UnreadableAnswer(ResultInvalid):
    """The service answered with what is not in the format of its answers at all, which is a failure of its own.

    A readable answer that breaks its contract's schema is none: the schema may be wrong, and other tools of the service
    work.
    """
