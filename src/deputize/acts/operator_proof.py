"""Require proof of an operator for the acts that need one, whichever interface they come from.

In production, the proof is a person's recent sign-in at an issuer that the settings mark as one of operators, or the
token that this gateway issued to an operator client of the settings. In development, whose tokens prove nothing, it is
the code that the terminal of `deputize dev` shows for exactly this act. The process itself needs none: it applies the
settings of the operator who started it.
"""

from deputize.core.caller import ADMIN_SCOPE, OPERATE_SCOPE, PROCESS_ISSUER, Caller
from deputize.core.errors import OperatorConfirmationRequired
from deputize.core.settings import IdentitySettings
from deputize.govern.approvals.confirmation_codes import CODE_SECONDS, ListChanges, ProposedAct
from deputize.lifecycle.runtime import Runtime

IN_PERSON_RULE = "operator-in-person"
TERMINAL_CODE_RULE = "operator-terminal-code"
ISSUER_RULE = "operator-issuer"
SIGN_IN_RULE = "operator-sign-in"
CLIENT_RULE = "operator-client"


def require_operator(
    runtime: Runtime, caller: Caller, act: ProposedAct, *, now: int, list_changes: ListChanges | None = None
) -> str | None:
    """Return the rule by which an operator confirmed the act; None if it needs none. Raise if no operator did.

    `list_changes` lists the documents that the act changes, for the terminal to show beside the code.
    """
    if caller.issuer == PROCESS_ISSUER:
        return None
    _require_own_token(caller)
    issuers = runtime.settings.identity.issuers
    issuer = next((each for each in issuers if each.issuer == caller.issuer), None)
    # Without an issuer it can only be an operator client, with a token of this gateway (`build_operator_client`). In
    # development, the keys that sign it lie in the project's folder like the issuer's.
    if issuer.development if issuer is not None else any(each.development for each in issuers):
        return _require_code(runtime, caller, act, list_changes)
    rule = _require_sign_in(runtime.settings.identity, caller, now)
    return CLIENT_RULE if issuer is None else rule


def require_person(identity: IdentitySettings, caller: Caller, *, now: int) -> str:
    """Return the rule by which a caller is an operator who has just signed in; raise if they are not."""
    _require_own_token(caller)
    return _require_sign_in(identity, caller, now)


def _require_own_token(caller: Caller) -> None:
    limits = (caller.capabilities, caller.ceiling, caller.task)
    if caller.agents or caller.grants or any(each is not None for each in limits):
        raise OperatorConfirmationRequired(
            "an agent, or a token that is delegated or limited, cannot act as an operator",
            details={"rule": IN_PERSON_RULE},
            advice="Ask a person who operates this gateway. They repeat it with a token of their own.",
        )


def _require_code(runtime: Runtime, caller: Caller, act: ProposedAct, list_changes: ListChanges | None) -> str:
    codes, details = runtime.confirmation_codes, {"rule": TERMINAL_CODE_RULE}
    if codes is None:
        raise OperatorConfirmationRequired(
            "a development token proves no operator, and this gateway has no terminal that shows codes",
            details=details,
            advice="Do this at a gateway that deputize dev runs in a terminal.",
        )
    why = "the terminal of deputize dev shows a code for this act"
    if caller.confirmation_code:
        verdict = codes.use_code(act, caller.confirmation_code)
        if verdict == "accepted":
            return TERMINAL_CODE_RULE
        why = "wrong or expired code for this act"
        if verdict == "locked":
            raise OperatorConfirmationRequired(
                "too many wrong codes were entered",
                details=details,
                retry_after_ms=int(codes.get_lockout_seconds(act) * 1000) + 1,
                advice="Wait, then enter the code that the terminal of deputize dev shows.",
            )
    confirmation_id = codes.show_code(act, list_changes)
    if confirmation_id is None:
        raise OperatorConfirmationRequired(
            "too many acts wait for their confirmation",
            details=details,
            retry_after_ms=int(CODE_SECONDS * 1000),
            advice="Confirm or ignore the codes that the terminal of deputize dev shows; each expires after 5 minutes.",
        )
    raise OperatorConfirmationRequired(
        why,
        details={**details, "confirmation_id": confirmation_id, "command": act.command, "subject": act.subject},
        advice="Read in that terminal what would be done. To confirm it, repeat the same request within 5 minutes with "
        "the code: --code CODE, or the header Deputize-Confirmation.",
    )


def _require_sign_in(identity: IdentitySettings, caller: Caller, now: int) -> str:
    if not caller.operator:
        raise OperatorConfirmationRequired(
            "only a person who signed in at an issuer of operators can do this",
            details={"rule": ISSUER_RULE},
            advice="Sign in at an issuer that has operator = true under [[identity.issuers]], or ask an operator. A "
            "program needs a token of an operator client ([[identity.operators]]).",
        )
    age = now - caller.auth_time
    if caller.auth_time <= 0 or not -identity.leeway_seconds <= age <= identity.operator_fresh_seconds:
        raise OperatorConfirmationRequired(
            f"you signed in more than {identity.operator_fresh_seconds} seconds ago, or your token has no auth_time",
            details={"rule": SIGN_IN_RULE, "max_age": identity.operator_fresh_seconds},
            advice=f"Run deputize login --fresh --scope {ADMIN_SCOPE if caller.is_admin else OPERATE_SCOPE}, or sign "
            "in to the console again, then repeat it. Your provider must put auth_time into its tokens.",
        )
    return SIGN_IN_RULE
