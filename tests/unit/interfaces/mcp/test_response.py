"""An answer, and the news before it, to a client that reads at its own pace."""

import asyncio
from typing import Any

import orjson

from deputize.interfaces.mcp.response import MAX_QUEUE_LENGTH, McpResponse


async def test_a_client_that_does_not_read_keeps_no_more_than_a_little_news_waiting() -> None:
    reads, sent = asyncio.Event(), []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        await reads.wait()
        sent.append(message)

    reply = McpResponse(receive, send)
    for number in range(10_000):
        reply.notify("notifications/progress", {"progressToken": 1, "progress": number})
    finishing = asyncio.create_task(reply.finish(200, [], b'{"the":"answer"}'))
    await asyncio.sleep(0)
    reads.set()
    await finishing
    news = [orjson.loads(each["body"].partition(b"data: ")[2]) for each in sent[1:]]
    assert len(news) <= MAX_QUEUE_LENGTH + 2
    assert news[-1] == {"the": "answer"}
    assert news[-2]["params"]["progress"] == 9_999


async def test_news_that_is_written_to_look_like_more_news_stays_one_line() -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        sent.append(message)

    reply = McpResponse(receive, send)
    reply.notify("notifications/progress", {"message": "a\n\ndata: {}\r\n\r\nevent: x\u2028\u0085"})
    await asyncio.sleep(0)
    await reply.finish(200, [], b"{}")
    assert [each["body"].count(b"\n") for each in sent[1:]] == [3, 3]
