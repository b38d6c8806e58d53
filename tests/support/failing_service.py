"""Tools of services that fail when a test says so, each with a circuit breaker whose times no slow machine passes."""

from collections.abc import Awaitable, Callable
from typing import Any

from deputize import ToolContext, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.tools import PythonTool
from deputize.core.errors import UpstreamUnavailable
from tests.support.gateway_lab import GatewayLab, wait_until
from tests.support.scripted_tools import Tag

BREAKER: dict[str, Any] = {
    "failure_threshold": 5,
    "window_seconds": 3600,
    "timeout_seconds": 3600,
    "success_threshold": 3,
    "half_open_max_calls": 10,
}
RETRIED_SERVICES = ("retries", "budgets", "unsafe")
SERVICES = (
    "adds_up", "recovers", "counts", "crosses", "loses", "keys", "queues", "shows", "stops", "lasts", "visible",
    *RETRIED_SERVICES,
)  # fmt: skip
Behave = Callable[[ToolContext], Awaitable[dict[str, Any]]]


async def _fail(_: ToolContext) -> dict[str, Any]:
    raise UpstreamUnavailable("it does not answer")


async def _answer(context: ToolContext) -> dict[str, Any]:
    return {"value": context.call_id}


class Service:
    """What the service does now, and how often it was called."""

    def __init__(self) -> None:
        self.behave: Behave = _fail
        self.calls = 0

    def recover(self) -> None:
        self.behave = _answer

    def fail(self) -> None:
        self.behave = _fail


services = {name: Service() for name in SERVICES}


def _make_tools(name: str) -> list[PythonTool]:
    service, attempts = services[name], 3 if name in RETRIED_SERVICES else 1
    shared: dict[str, Any] = {
        "namespace": "lab",
        "external_service": name,
        "breaker": BREAKER,
        "retry": {"max_attempts": attempts, "base_seconds": 0.001},
    }

    async def read(tag: Tag, context: ToolContext) -> dict[str, Any]:
        """Read something from the service."""
        service.calls += 1
        return await service.behave(context)

    async def write(tag: Tag, context: ToolContext) -> dict[str, Any]:
        """Write something to the service, twice if asked twice."""
        service.calls += 1
        return await service.behave(context)

    for function in (read, write):
        # A gateway finds a tool's function by its name.
        function.__qualname__ = function.__name__ = f"{function.__name__}_{name}"
    declared_read = tool(effects="read", name=f"read_{name}", **shared)(read)
    declared_write = tool(
        effects="write", name=f"write_{name}", resources=["create lab.notes/{tag}"], idempotency="cannot",
        scopes=["lab:write"], undo="lab.note", **shared,
    )(write)  # fmt: skip
    return [getattr(declared_read, ATTRIBUTE), getattr(declared_write, ATTRIBUTE)]


SERVICE_TOOLS = [each for name in SERVICES for each in _make_tools(name)]


def get_circuit_state(lab: GatewayLab, service: str, tenant: str = "dev") -> str:
    return str(dict(lab.runtime.circuits.iterate_states()).get((tenant, service), "closed"))


async def wait_for_circuit(lab: GatewayLab, service: str, state: str) -> None:
    async def has_state() -> bool:
        return get_circuit_state(lab, service) == state

    await wait_until(has_state)


async def end_pause(lab: GatewayLab, service: str, *others: GatewayLab) -> None:
    """Make the pause of an open circuit over, as if its time had passed, and wait until the gateways know it."""
    await lab.db.execute(
        "update deputize.circuit_breakers set changed_at = changed_at - interval '2 hours' where service = $1", service
    )
    for each in (lab, *others):

        async def is_over(gateway_lab: GatewayLab = each) -> bool:
            local = gateway_lab.runtime.circuits.unclosed_circuits.get(("dev", service))
            return local is not None and local.circuit.retry_at <= gateway_lab.runtime.clock.monotonic()

        await wait_until(is_over)
