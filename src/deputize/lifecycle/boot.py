"""What the settings name comes into being at start-up, by the same commands an administrator would use."""

from collections.abc import Awaitable, Callable, Sequence

from deputize.core.caller import Caller
from deputize.core.contract import Effects
from deputize.core.definition import PythonTool
from deputize.core.errors import PolicyInvalid, Registry
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Settings
from deputize.govern.policy.files import read_files
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.operator import operator


async def boot(gateway: Gateway, tools: Sequence[PythonTool], complete: Callable[[Caller], Awaitable[Caller]]) -> None:
    settings = gateway.settings
    by = await complete(operator(settings.tools.tenant))
    # What only reads comes first: others may name it as their status.
    for tool in sorted(tools, key=lambda each: each.contract.effects is not Effects.READ):
        try:
            await gateway.commands.register(by, tool.contract)
        except Registry as problem:
            gateway.refused.append(problem)
    if settings.policy.files:
        await _put_policies(gateway, complete)


async def _put_policies(gateway: Gateway, complete: Callable[[Caller], Awaitable[Caller]]) -> None:
    """For every tenant the settings name; those that only tokens name have theirs put by their administrators."""
    settings = gateway.settings
    files = read_files(settings.policy.files)
    for tenant in named_tenants(settings):
        by = await complete(operator(tenant))
        try:
            await gateway.commands.put_policies(by, files)
        except PolicyInvalid as invalid:
            if tenant != settings.tools.tenant:
                # What its administrators made its tools expose does not fit: no reason to serve nobody.
                gateway.refused.append(invalid)
                continue
            wrong = invalid.details["errors"]
            told = "\n".join(f"  {each['file']}:{each['line']}: {each['message']}" for each in wrong)
            raise Misconfigured(f"The policies of policy.files cannot take force:\n{told}") from None


def named_tenants(settings: Settings) -> list[str]:
    named = {each.tenant for each in settings.identity.issuers} | {each.tenant for each in settings.servers}
    return sorted({settings.tools.tenant, *(tenant for tenant in named if tenant)})
