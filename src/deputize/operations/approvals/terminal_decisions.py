"""Let a person who can read the terminal of `deputize dev` decide approval requests.

The issuer of `deputize dev` is a key in a folder that agents can read too, so its tokens decide nothing. `decisions.py`
compares the codes; this module shows them at startup, and identifies a person by a code instead of a token.
"""

from collections.abc import Awaitable, Callable

from deputize.core.caller import ADMIN_SCOPE, TERMINAL_ISSUER, Caller
from deputize.core.errors import HumanTaskNotFound
from deputize.lifecycle.runtime import Runtime
from deputize.operations.approvals.decisions import ApprovalDecisions
from deputize.store.queries import load_statements

_MAX_CODES = 50
_SQL = load_statements("terminal")
CodeVerifier = Callable[[str, str], Awaitable[Caller]]


async def show_open_codes(runtime: Runtime) -> None:
    """Show the new codes of approval requests opened before this start, oldest first."""
    if runtime.approval_codes is None:
        return
    async with runtime.store.write_transaction() as connection:
        rows = await connection.fetch(_SQL["list_open_approval_requests"], _MAX_CODES)
    for row in reversed(rows):
        runtime.approval_codes.show_code(
            row["tenant"], str(row["id"]), bytes(row["binding"]), row["tool"], row["caller_user"]
        )


def build_code_verifier(
    runtime: Runtime, approvals: ApprovalDecisions, complete_caller: Callable[[Caller], Awaitable[Caller]]
) -> CodeVerifier | None:
    """Return a function that identifies a person by a code without a token, or None if no codes are accepted.

    The tenant is that of the approval request that was shown: the person does not choose it.
    """
    codes = runtime.approval_codes
    if codes is None:
        return None

    async def verify_code(approval_id: str, code: str) -> Caller:
        tenant = codes.get_tenant(approval_id)
        if tenant is None:
            raise HumanTaskNotFound("the terminal shows no approval request with this id")
        # This caller can find any approval request but reads nothing: the result is a person, or a recorded refusal.
        terminal_caller = Caller(
            tenant=tenant, user=TERMINAL_ISSUER, issuer=TERMINAL_ISSUER, scopes=frozenset({ADMIN_SCOPE})
        )
        return await approvals.verify_terminal_code(await complete_caller(terminal_caller), approval_id, code)

    return verify_code
