"""A secret shows itself to anyone who asks it to, while it is open, and to no one else."""

import copy
import dataclasses
import json
import pickle

import orjson
import pytest

from deputize.core.contract.tools import Secret, SecretClosed, ToolContext

VALUE = "canary-3f1c9a"

pytestmark = pytest.mark.requirement("GOV-7")


def _make_context(secret: Secret) -> ToolContext:
    return ToolContext(
        call_id="c", tenant="dev", user="ana", agent="", session=None, key="c", attempt=1, seconds_left=1.0,
        traceparent=None, credential=secret,
    )  # fmt: skip


def test_a_secret_is_revealed_until_it_is_closed() -> None:
    secret = Secret(VALUE, name="crm/api-key")
    assert secret.reveal() == VALUE
    secret.close()
    secret.close()
    with pytest.raises(SecretClosed) as refused:
        secret.reveal()
    assert VALUE not in str(refused.value)


def test_no_way_of_writing_it_down_shows_the_value() -> None:
    secret = Secret(VALUE, name="crm/api-key")
    context = _make_context(secret)
    written = (
        str(secret),
        repr(secret),
        f"{secret}",
        f"{secret!r:>40}",
        str([secret]),
        repr(context),
        str(dir(secret)),
    )
    assert not any(VALUE in each for each in written)
    assert "crm/api-key" in repr(context)
    assert VALUE not in json.dumps({"secret": secret}, default=str)
    for dump in (pickle.dumps, orjson.dumps, json.dumps):
        with pytest.raises(TypeError):
            dump(secret)
        with pytest.raises(TypeError):
            dump(context)
    assert not hasattr(secret, "__dict__")


def test_a_copy_is_the_same_handle_and_is_closed_with_it() -> None:
    secret = Secret(VALUE)
    copies = (copy.copy(secret), copy.deepcopy(secret), dataclasses.asdict(_make_context(secret))["credential"])
    secret.close()
    for each in copies:
        with pytest.raises(SecretClosed):
            each.reveal()
