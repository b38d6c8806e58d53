"""What is written down of a caller is all there is to decide by when the run goes on."""

from dataclasses import fields, replace

import orjson
import pytest

from deputize.catalog.compiled import CompiledTool
from deputize.core.call import CallRequest
from deputize.core.caller import Caller, Capability, standing_of
from deputize.core.clock import Deadline
from deputize.core.contract import Effects
from deputize.core.errors import TokenIssuer
from deputize.core.questions import Ability, Round
from deputize.core.settings import Issuer
from deputize.lifecycle.phases import Received, Validated
from deputize.lifecycle.recorded import WrittenInput, caller_bytes, caller_from, input_bytes
from deputize.prove.tracing import Trail
from tests.unit.catalog.contracts import contract

pytestmark = pytest.mark.requirement("NEW-3")

TRUSTED = Issuer(
    issuer="https://login.example", audience="deputize", jwks_url="https://login.example/keys", trust="trusted"
)
LENT = Caller(
    tenant="acme", user="ana", agents=("bot", "helper"), scopes=frozenset({"a", "b"}), session="s", token_id="t",
    capabilities=(Capability(tool="shop.buy", versions=">=1"),), issuer="https://login.example", expires_at=2,
    issued_at=1, groups=frozenset({"g"}), trust="trusted", human=True, auth_time=3, grants=("g2", "g1"),
    first_token="origin", task="shopping", ceiling=Effects.WRITE, pseudonyms=("p", "q", "r"),
)  # fmt: skip


def test_a_caller_is_read_back_whole() -> None:
    plain = Caller(tenant="acme", user="ana")
    unset = {each.name for each in fields(Caller) if getattr(LENT, each.name) == getattr(plain, each.name)}
    # Whoever adds a fact to callers gives it a value above, and so finds out whether it is written down.
    # Who decides is there in person: nothing that lets somebody decide is written down.
    assert unset == {"tenant", "user", "standing", "console", "only_decides", "methods"}
    again = caller_from(caller_bytes(LENT), [TRUSTED])
    for each in fields(Caller):
        if each.name != "standing":
            assert getattr(again, each.name) == getattr(LENT, each.name), each.name
    assert again.standing == standing_of(LENT)


def test_what_an_earlier_release_wrote_down_is_still_read() -> None:
    told = orjson.loads(caller_bytes(LENT))
    del told["first_token"]
    assert caller_from(orjson.dumps(told), [TRUSTED]).first_token == ""


def test_who_is_trusted_less_since_or_not_at_all_is_not_what_was_written_down() -> None:
    less = TRUSTED.model_copy(update={"trust": "untrusted"})
    again = caller_from(caller_bytes(LENT), [less])
    assert (again.trust, again.standing) == ("untrusted", standing_of(replace(LENT, trust="untrusted")))
    for issuers in ([], [TRUSTED.model_copy(update={"tenant": "another"})]):
        with pytest.raises(TokenIssuer):
            caller_from(caller_bytes(LENT), issuers)


def _written(told: Round | None) -> Validated:
    request = CallRequest(tool="orders.cancel", arguments={"a": 1}, can_answer=frozenset(Ability))
    received = Received(
        call_id="c", caller=LENT, request=request, session=None, started=0.0, deadline=None, trail=Trail(trace_id="t")
    )  # fmt: skip
    tool = CompiledTool(contract())
    return Validated(
        received=received, tool=tool, deadline=Deadline(at=1.0), canonical=b"{}", call_input=request.arguments,
        round=told,
    )  # fmt: skip


def test_answers_are_written_down_with_the_call_that_gives_them_and_read_back_whole() -> None:
    told = Round(continues="first", state="theirs", responses={"who": {"action": "decline"}})
    read = WrittenInput(input_bytes(_written(told)))
    assert read.round == told
    assert read.can_answer == frozenset(Ability)
    assert read.request("orders.cancel", "1.0.0", None).can_answer == frozenset(Ability)


def test_a_release_that_knows_nothing_of_answers_leaves_such_a_call_to_others_and_takes_all_the_rest() -> None:
    told = Round(continues="first", state=None, responses={})
    assert orjson.loads(input_bytes(_written(told)))["v"] == 2
    plain = orjson.loads(input_bytes(_written(None)))
    assert plain["v"] == 1
    for name in ("round", "can_answer"):
        del plain[name]
    earlier = WrittenInput(orjson.dumps(plain))
    assert (earlier.round, earlier.can_answer) == (None, frozenset())
