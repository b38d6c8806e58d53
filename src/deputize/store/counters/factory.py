"""Open the counters that the settings name: shared by all gateways, or of this process alone."""

import importlib

from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.settings.limits import LimitSettings
from deputize.store.counters.in_process import InProcessCounters
from deputize.store.counters.port import Counters


def open_counters(limits: LimitSettings, clock: Clock) -> Counters:
    """Open the counters. The Redis client is imported only if it is used, because the import is slow."""
    url = limits.redis_url
    if url is None:
        return InProcessCounters(clock)
    try:
        redis = importlib.import_module("deputize.store.counters.redis")
    except ImportError:
        raise ConfigError(
            "limits.redis_url is set, but the Redis client is not installed. Run: pip install 'deputize[redis]'."
        ) from None
    counters: Counters = redis.RedisCounters(url.get_secret_value(), seconds=limits.redis_seconds, clock=clock)
    return counters
