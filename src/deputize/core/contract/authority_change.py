"""Find out in what a contract gives more authority than the one that calls use now."""

from deputize.core.contract.contract import Contract
from deputize.core.contract.safety_floor import list_weakenings

_INPUT_SCHEMA = "/input_schema/"
# What a value is, or is by default, gives no caller authority; its bounds and marks do.
_NEUTRAL_KEYWORDS = ("/type", "/default")


def list_authority_reasons(old: Contract | None, new: Contract) -> list[str]:
    """List in what a contract gives more authority than the one that calls use now; none if it gives no more."""
    if old is None:
        credential = new.auth.credential
        return [] if credential == "none" else [f"a new tool that gets a credential ({credential})"]
    reasons = [
        f"{each.path.lstrip('/').replace('/', '.')}: {each.function_value} → {each.contract_value}"
        for each in list_weakenings(new, old)
        if not (each.path.startswith(_INPUT_SCHEMA) and each.path.endswith(_NEUTRAL_KEYWORDS))
    ]
    # More scopes let its credential do more, another credential is another account.
    if new.auth != old.auth and not any(each.startswith("auth.") for each in reasons):
        reasons.append("auth: other scopes or another credential")
    return reasons
