"""What the settings name comes into being at start-up, by the same commands an administrator would use."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from deputize.core.caller import ADMIN_SCOPE, PROCESS, Caller
from deputize.core.contract import Effects
from deputize.core.definition import PythonTool
from deputize.core.errors import PolicyInvalid, Registry
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Settings
from deputize.govern.policy.files import read_files
from deputize.lifecycle.gateway import Gateway


async def boot(gateway: Gateway, tools: Sequence[PythonTool], complete: Callable[[Caller], Awaitable[Caller]]) -> None:
    settings = gateway.settings
    operator = await complete(_operator(settings))
    # What only reads comes first: others may name it as their status.
    for tool in sorted(tools, key=lambda each: each.contract.effects is not Effects.READ):
        try:
            await gateway.commands.register(operator, tool.contract)
        except Registry as problem:
            gateway.refused.append(problem)
    if settings.policy.files:
        await _put_policies(gateway, complete)


async def _put_policies(gateway: Gateway, complete: Callable[[Caller], Awaitable[Caller]]) -> None:
    """For every tenant the settings name; those that only tokens name have theirs put by their administrators."""
    settings = gateway.settings
    files = read_files(settings.policy.files)
    for tenant in named_tenants(settings):
        operator = await complete(replace(_operator(settings), tenant=tenant))
        try:
            await gateway.commands.put_policies(operator, files)
        except PolicyInvalid as invalid:
            if tenant != settings.tools.tenant:
                # What its administrators made its tools expose does not fit: no reason to serve nobody.
                gateway.refused.append(invalid)
                continue
            wrong = invalid.details["errors"]
            told = "\n".join(f"  {each['file']}:{each['line']}: {each['message']}" for each in wrong)
            raise Misconfigured(f"The policies of policy.files cannot take force:\n{told}") from None


def named_tenants(settings: Settings) -> list[str]:
    return sorted({settings.tools.tenant, *(each.tenant for each in settings.identity.issuers if each.tenant)})


def _operator(settings: Settings) -> Caller:
    """Whoever started the process; recorded like any other administrator."""
    return Caller(
        tenant=settings.tools.tenant,
        user="operator",
        scopes=frozenset({ADMIN_SCOPE}),
        issuer=PROCESS,
        token_id="boot",
    )
