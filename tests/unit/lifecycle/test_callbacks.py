"""Signatures that any receiver of Standard Webhooks checks, across rotations; and pauses that grow."""

import base64
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.call import Callback
from deputize.core.clock import Clock
from deputize.core.errors import CallbackRefused
from deputize.core.settings import WebhookSettings
from deputize.lifecycle.callbacks import (
    compute_delivery_backoff,
    derive_callback_keys,
    parse_callback,
    require_callback_allowed,
    serialize_callback,
    sign_delivery,
)
from deputize.store.keys import KeySet

pytestmark = pytest.mark.requirement("INV-4")
FIRST, SECOND = b"1" * 32, b"2" * 32


def _sign_body(keys: KeySet, name: str, delivery: str, at: int, body: bytes) -> str:
    told = f"{delivery}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(keys.derive_webhook_keys(name)[0], told, "sha256")).decode()


@given(body=st.binary(max_size=200), at=st.integers(0, 2**40))
def test_anyone_who_holds_the_key_from_before_a_rotation_can_still_check(body: bytes, at: int) -> None:
    before = KeySet.from_data_keys("dev", {1: FIRST}, Clock())
    after = KeySet.from_data_keys("dev", {1: FIRST, 2: SECOND}, Clock())
    marks = sign_delivery(after.derive_webhook_keys("default"), "d", at, body)["webhook-signature"].split(" ")
    assert marks == [_sign_body(after, "default", "d", at, body), _sign_body(before, "default", "d", at, body)]


def test_names_tenants_and_purposes_have_keys_of_their_own() -> None:
    dev = KeySet.from_data_keys("dev", {1: FIRST}, Clock())
    assert dev.derive_webhook_keys("a") != dev.derive_webhook_keys("b")
    assert dev.derive_webhook_keys("a") != KeySet.from_data_keys("other", {1: SECOND}, Clock()).derive_webhook_keys("a")
    assert dev.derive_webhook_keys("a")[0] not in (dev.fingerprint_key, dev.records_key)


def test_no_callback_is_signed_with_the_key_of_a_sink_or_of_another_host() -> None:
    dev = KeySet.from_data_keys("dev", {1: FIRST, 2: SECOND}, Clock())
    callbacks = [
        Callback(url=f"https://{host}/hook", secret=name)
        for host in ("a.example", "b.example")
        for name in ("siem", "approvals", "default")
    ]
    keys = [dev.derive_webhook_keys("siem"), dev.derive_webhook_keys("approvals")]
    keys += [list(derive_callback_keys(dev, each)) for each in callbacks]
    assert len({key for each in keys for key in each}) == 2 * len(keys)
    same_host = Callback(url="https://A.example.:8443/other?x=1", secret="siem")
    assert derive_callback_keys(dev, same_host) == derive_callback_keys(dev, callbacks[0])


def test_a_callback_is_read_as_it_was_written() -> None:
    asked = Callback(url="https://a.example/x?y=z", secret="billing", include_result=True)
    assert parse_callback(serialize_callback(asked)) == asked


def test_pauses_grow_fourfold_up_to_six_hours() -> None:
    for attempts in range(1, 12):
        least = min(5.0 * 4 ** (attempts - 1), 6 * 3600.0)
        assert 0.8 * least <= compute_delivery_backoff(5.0, attempts) <= 1.2 * least


@given(url=st.text(max_size=60))
def test_no_text_is_taken_for_an_address_that_is_none(url: str) -> None:
    with pytest.raises(CallbackRefused):
        require_callback_allowed(WebhookSettings(), Callback(url=url))


@pytest.mark.parametrize("url", ["https://a.example/", "https://A.example:8443/x", "https://93.184.216.34/"])
def test_public_hosts_require_https(url: str) -> None:
    require_callback_allowed(WebhookSettings(), Callback(url=url))


@pytest.mark.parametrize("url", ["http://Inside.example./x", "https://inside.example/"])
def test_configured_hosts_accept_any_callback_url(url: str) -> None:
    require_callback_allowed(WebhookSettings(hosts=("inside.example",)), Callback(url=url, include_result=True))
