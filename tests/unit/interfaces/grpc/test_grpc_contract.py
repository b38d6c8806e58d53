"""The .proto file is the contract: generated code follows it, and requests say everything that REST can say."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from deputize.core.errors import PermissionDenied, TokenMissing
from deputize.core.settings import GrpcSettings, Settings
from deputize.interfaces.call_request import FIELDS, MAX_DEADLINE_MS
from deputize.interfaces.grpc import deputize_v1_pb2 as messages
from deputize.interfaces.grpc.factory import open_grpc_listener
from deputize.interfaces.grpc.request_fields import build_call_request, compute_deadline_ms
from deputize.interfaces.grpc.status import DETAILS_KEY, describe_problem

FOLDER = Path(str(messages.__file__)).parent


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(FOLDER)]
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", "deputize_v1.proto"]
    subprocess.run([*command, *outputs], check=True, timeout=120)
    for name in ("deputize_v1_pb2.py", "deputize_v1_pb2.pyi"):
        assert (tmp_path / name).read_text() == (FOLDER / name).read_text(), f"run: {' '.join(command)} (see above)"


async def test_everything_that_rest_can_say_can_be_said() -> None:
    # The deadline is the RPC's own.
    renamed = {"continue": "may_continue"}
    names = {each.name for each in messages.CallRequest.DESCRIPTOR.fields}
    assert names == {renamed.get(each, each) for each in FIELDS if each != "deadline_ms"}
    message = messages.CallRequest(
        tool="shop.get_user",
        arguments=b'{"id": 1}',
        version="^1",
        session="s",
        step="t",
        dry_run=True,
        mode="async",
        priority=3,
        may_continue=True,
        callback=messages.Callback(url="https://example.com/done", secret="main", include_result=True),
        client_capabilities=["sampling"],
        input_responses=messages.InputResponses(round_token="r", responses=b'{"q": 1}'),
        did_not_happen=True,
        native_call_id="n",
        parent_call_id="01900000-0000-7000-8000-000000000000",
        flow_id="f",
        max_age_seconds=0,
    )
    assert len(message.ListFields()) == len(names)
    metadata = {"idempotency-key": b"k", "traceparent": b"00-a-b-01"}
    request = await build_call_request(message, metadata, 500, 64)
    assert (request.tool, request.arguments, request.version) == ("shop.get_user", {"id": 1}, "^1")
    assert (request.idempotency_key, request.traceparent, request.deadline_ms) == ("k", "00-a-b-01", 500)
    assert (request.session, request.step, request.mode, request.priority) == ("s", "t", "async", 3)
    assert request.dry_run
    assert request.may_continue
    assert request.did_not_happen
    assert request.callback is not None
    assert (request.callback.secret, request.callback.include_result) == ("main", True)
    assert request.input_responses is not None
    assert request.input_responses.responses == {"q": 1}
    assert request.origin is not None
    assert request.origin.flow_id == "f"
    assert request.max_age_seconds == 0


@pytest.mark.parametrize(
    ("remaining", "deadline_ms"),
    [(None, None), (10.0, 9900), (1.0, 950), (0.0, 1), (-1.0, 1), (1e9, MAX_DEADLINE_MS)],
)
def test_the_answer_has_time_for_its_way_back(remaining: float | None, deadline_ms: int | None) -> None:
    assert compute_deadline_ms(remaining) == deadline_ms


def test_details_fit_into_what_clients_accept() -> None:
    rules = [{"id": f"{number}-{'r' * 500}"} for number in range(500)]
    problem = PermissionDenied("ä" * 10_000, advice="ü" * 10_000, details={"rules": rules})
    failure = describe_problem(problem, "0" * 32)
    assert len(orjson.dumps(failure.message)) + 4 * len(failure.metadata[0][1]) // 3 < 8_000
    assert failure.metadata[0][0] == DETAILS_KEY
    assert describe_problem(TokenMissing("no token"), "0" * 32, "https://a").metadata[1] == (
        "www-authenticate",
        'Bearer realm="deputize", resource_metadata="https://a"',
    )


async def test_a_port_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deputize.interfaces.grpc.listener", None)
    settings = Settings(grpc=GrpcSettings(port=0))
    with pytest.raises(Exception, match=r"pip install 'deputize\[grpc\]'"):
        async with open_grpc_listener(settings, lambda: pytest.fail("not opened"), None):  # type: ignore[arg-type]  # not reached
            pass
