"""The NATS sink keeps its secrets, reaches only what it may reach, and says what is wrong."""

import pytest

from deputize.core.settings import EventSinkSettings
from deputize.evidence.cloud_events import OutgoingEvent
from deputize.operations.background.events.nats_sink import NatsSink
from deputize.operations.background.events.sink import SinkFailure
from tests.support.nats_server import run_nats_server

pytestmark = pytest.mark.requirement("GOV-5")
EVENT = OutgoingEvent(id="1", tenant="acme", call_id=None, sequence=0, type="t", types=("t",), body=b"{}")


def make_settings(url: str) -> EventSinkSettings:
    return EventSinkSettings.model_validate({"name": "bus", "kind": "nats", "url": url})


async def test_secrets_are_not_sent_to_a_server_without_tls_and_not_shown() -> None:
    with run_nats_server() as server:
        sink = NatsSink(make_settings(server.url.replace("nats://", "tls://user:s3cret-w0rd@")))
        with pytest.raises(SinkFailure, match="does not offer TLS") as failure:
            await sink.send([EVENT])
    assert "s3cret" not in str(failure.value)


async def test_a_server_that_asks_for_a_user_gets_the_one_of_the_url() -> None:
    with run_nats_server("--user", "writer", "--pass", "p%40ss") as server:
        wrong = NatsSink(make_settings(server.url.replace("//", "//writer:wrong-word@")))
        with pytest.raises(SinkFailure) as failure:
            await wrong.send([EVENT])
        assert "wrong-word" not in str(failure.value)
        right = NatsSink(make_settings(server.url.replace("//", "//writer:p%2540ss@")))
        assert await right.send([EVENT]) == 1
        await right.aclose()


async def test_an_address_that_is_never_allowed_is_refused_for_brokers_too() -> None:
    with pytest.raises(SinkFailure, match="never allowed"):
        await NatsSink(make_settings("nats://169.254.169.254:4222")).send([EVENT])
