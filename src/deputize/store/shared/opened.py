"""Which counters the settings name: shared by every gateway, or this process's own.

Above: `app.py`. Below: `redis.py` and `in_process.py`.
"""

import importlib

from deputize.core.clock import Clock
from deputize.core.limit_settings import Limits
from deputize.core.mistakes import Misconfigured
from deputize.store.shared.counters import Counters
from deputize.store.shared.in_process import InProcessCounters


def opened_counters(limits: Limits, clock: Clock) -> Counters:
    """Shared where the settings say where; the client for that is loaded only then, for it takes its time."""
    url = limits.redis_url
    if url is None:
        return InProcessCounters(clock)
    try:
        redis = importlib.import_module("deputize.store.shared.redis")
    except ImportError:
        raise Misconfigured("limits.redis_url is set, but its client is not installed: pip install redis.") from None
    shared: Counters = redis.RedisCounters(url.get_secret_value(), seconds=limits.redis_seconds, clock=clock)
    return shared
