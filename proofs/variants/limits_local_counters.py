"""A gateway that counts alone: its replicas keep the same rules and do not know of each other."""

from deputize.govern.limits.budgets import Budgets
from deputize.govern.limits.limit_admission import LimitEnforcer
from deputize.operations.gateway import Gateway
from deputize.store.counters.in_process import InProcessCounters
from proofs.kit.gateway_internals import get_runtime, replace_runtime
from proofs.kit.gateway_variant import serve_variant


def change(gateway: Gateway) -> Gateway:
    runtime = get_runtime(gateway)
    local_limits = LimitEnforcer(
        runtime.settings.limits.rules,
        InProcessCounters(runtime.clock),
        Budgets(runtime.store, runtime.clock),
        clock=runtime.clock,
        on_refusal=runtime.metrics.record_limit_refusal,
        on_uncounted=runtime.metrics.record_uncounted_call,
    )
    return replace_runtime(gateway, limits=local_limits)


if __name__ == "__main__":
    serve_variant(change)
