"""Poison in one request never hurts a neighbour's: refused at the interface, or carried exactly."""

import asyncio
from urllib.parse import quote

import pytest

from tests.integration.conftest import HttpGateway

POISON = [
    b'{"tool":"shop.rename_user","arguments":{"id":1,"name":"\\u0000"}}',
    b'{"tool":"shop.rename_user","arguments":{"id":1,"name":"\\ud800"}}',
    b'{"tool":"shop.rename_user","arguments":{"id":1,"name":"\xed\xa0\x80"}}',
    b'{"tool":"shop.rename_user","arguments":{"id":9007199254740993,"name":"x"}}',
    b'{"tool":"shop.rename_user","arguments":{"id":1' + b"0" * 400 + b',"name":"x"}}',
    b'{"tool":"shop.rename_user","arguments":{"id":1e999,"name":"x"}}',
    b'{"tool":"shop.rename_user","arguments":{"id":1,"name":' + b"[" * 1000 + b"]" * 1000 + b"}}",
    b'{"tool":"shop.rename_user","arguments":{"id":1,"id":2,"name":"x"}}',
    b'{"tool":"shop.\\u0000","arguments":{}}',
    b'{"tool":"shop.rename_user","session":"\\u0000","arguments":{"id":1,"name":"x"}}',
]
ODD_BUT_FINE = ["\x7f\x80", "\u202e", "﷽" * 50, "🦉", "'; drop table calls; --", "%s {} \\", "\ue000\U00010000", " "]


@pytest.mark.parametrize("poison", POISON, ids=range(len(POISON)))
async def test_poison_is_refused_and_its_neighbours_go_through(poison: bytes, gateway: HttpGateway) -> None:
    headers = {"authorization": f"Bearer {gateway.token()}", "content-type": "application/json"}

    async def send_poison(number: int) -> int:
        keyed = {**headers, "idempotency-key": f"bad-{number}"}
        return (await gateway.http.post("/v1/calls", content=poison, headers=keyed)).status_code

    async def send_valid(number: int) -> int:
        asked = {"id": number + 1, "name": "good"}
        return (await gateway.call("shop.rename_user", asked, key=f"{hash(poison)}-{number}")).status_code

    answers = await asyncio.gather(*(each(number) for number in range(8) for each in (send_poison, send_valid)))
    assert set(answers[0::2]) == {400}
    assert set(answers[1::2]) == {200}


@pytest.mark.parametrize("text", ODD_BUT_FINE)
async def test_unusual_text_is_passed_and_replayed_exactly(text: str, gateway: HttpGateway) -> None:
    key = f"odd-{ODD_BUT_FINE.index(text)}"
    first = await gateway.call("shop.rename_user", {"id": 1, "name": text}, key=key)
    again = await gateway.call("shop.rename_user", {"id": 1, "name": text}, key=key)
    assert first.json()["result"]["name"] == text
    assert again.content == first.content


async def test_odd_names_of_tools_and_sessions_are_only_unknown(gateway: HttpGateway) -> None:
    for text in ODD_BUT_FINE:
        answer = await gateway.call(text, session=text)
        assert (answer.status_code, answer.json()["error"]["slug"]) == (404, "tool-not-found")
        assert (await gateway.get(f"/v1/tools/{quote(text, safe='')}")).status_code == 404


@pytest.mark.parametrize(
    "path", ["/v1/tools/%00", "/v1/calls/%00", "/v1/tools/search?q=%00", "/v1/tools/a%00b/versions"]
)
async def test_a_nul_in_an_address_is_malformed(path: str, gateway: HttpGateway) -> None:
    answer = await gateway.get(path)
    assert (answer.status_code, answer.json()["error"]["slug"]) == (400, "malformed")
