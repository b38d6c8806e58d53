"""Three systems that tell the same facts about customers, and the rules that compare them."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from deputize import tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.settings import ConsistencyRule, Settings
from deputize.lifecycle.runtime import Runtime
from tests.integration.conftest import HttpGateway, serve_gateway
from tests.support.gateway_internals import get_runtime

Id = Annotated[str, Field(description="Which customer", examples=["7"])]
# What each system says, by its name and the customer.
facts: dict[tuple[str, str], dict[str, Any]] = {}


@tool(effects="read", namespace="crm", authority_rank=20)
async def get_customer(id: Id) -> dict[str, Any]:
    """Return what sales knows about a customer."""
    return facts["crm", id]


@tool(effects="read", namespace="billing", authority_rank=60)
async def get_account(account: Annotated[int, Field(description="Which customer", examples=[7])]) -> dict[str, Any]:
    """Return what accounting knows about a customer."""
    return facts["billing", str(account)]


@tool(effects="read", namespace="ledger", authority_rank=60)
async def get_balance(customer: Id) -> dict[str, Any]:
    """Return what the ledger knows about a customer."""
    return facts["ledger", customer]


@tool(
    effects="write",
    namespace="crm",
    scopes=["shop:write"],
    resources=["update crm.c/{id}"],
    idempotency="cannot",
    undo="crm.touch_customer",
)
async def touch_customer(id: Id) -> dict[str, Any]:
    """Note that a customer was called."""
    return facts["crm", id]


TOOLS = [getattr(each, ATTRIBUTE) for each in (get_customer, get_account, get_balance, touch_customer)]
NAMES = {"crm": "crm.get_customer", "billing": "billing.get_account", "ledger": "ledger.get_balance"}
ARGUMENTS = {"crm": "id", "billing": "account", "ledger": "customer"}


def make_rule(name: str, field: str, *more_sources: dict[str, str], **more: Any) -> ConsistencyRule:
    sources = [
        {"tool": NAMES[system], "entity": f"/input/{ARGUMENTS[system]}", "value": f"/output/{field}"}
        for system in NAMES
    ]
    return ConsistencyRule.model_validate({"name": name, "sources": [*sources, *more_sources], **more})


RULES = (
    make_rule("balances", "balance", resolution="authority", tolerance=0.01),
    make_rule("addresses", "address", resolution="freshness", ignore_case=True),
    make_rule("states", "state", resolution="majority"),
    make_rule(
        "limits",
        "limit",
        {"tool": "crm.touch_customer", "entity": "/input/id", "value": "/output/limit"},
        {"tool": "crm.no_such_tool", "entity": "/input/id", "value": "/output/limit"},
        resolution="human",
    ),
    make_rule("elsewhere", "elsewhere", resolution="human", tenants="someone-else"),
)


def open_sources(dsn: str, folder: Path, changes: dict[str, Any]) -> AbstractAsyncContextManager[HttpGateway]:
    def change(settings: Settings) -> Settings:
        return settings.model_copy(update=changes)

    return serve_gateway(dsn, folder, change=change, gateway_options={"tools": TOOLS})


def get_gateway_runtime(gateway: HttpGateway) -> Runtime:
    assert gateway.in_process is not None
    return get_runtime(gateway.in_process)


async def ask(gateway: HttpGateway, system: str, id: int, *, token: str | None = None) -> dict[str, Any]:
    """Call a system about a customer. Tests use customers of their own, so that they share a gateway."""
    argument: Any = id if system == "billing" else str(id)
    answer: dict[str, Any] = (
        await gateway.call(NAMES[system], {ARGUMENTS[system]: argument}, token=token or gateway.token())
    ).json()
    return answer


def let_say(id: int, field: str, **values: Any) -> None:
    for system, value in values.items():
        facts[system, str(id)] = {field: value}


def get_slug(answer: dict[str, Any]) -> str | None:
    return answer["error"]["slug"] if answer["is_error"] else None
