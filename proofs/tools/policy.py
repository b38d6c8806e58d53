"""What drafts of policies are tried on: tools that do nothing, and tell policies an amount or an account."""

from typing import Annotated

from pydantic import Field

from deputize import Fact, Sensitive, tool

Amount = Annotated[int, Fact(), Field(description="How much", examples=[5], ge=1)]
Account = Annotated[str, Fact(), Sensitive("pii"), Field(description="Where to", examples=["DE1"], max_length=64)]


@tool(effects="write", namespace="policy", undo="policy.look", resources=["create payments"], scopes=["proof:write"])
async def pay(amount: Amount) -> int:
    """Pay an amount, or rather do not."""
    return amount


@tool(effects="write", namespace="policy", undo="policy.look", resources=["create payments"], scopes=["proof:write"])
async def send(amount: Amount, iban: Account) -> int:
    """Send an amount to an account, or rather do not."""
    return amount


@tool(effects="read", namespace="policy")
async def look(word: Annotated[str, Field(description="Anything", examples=["a"], max_length=64)]) -> str:
    """Give the word back and change nothing."""
    return word
