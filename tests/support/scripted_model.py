"""A scripted model: it speaks the wire formats of model APIs, calls two tools in its first turn, and quotes the results
in its second. No model is asked.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CALLS = (("call_1", "hello__greet", {"name": "Ana"}), ("call_2", "hello__forget", {"number": 99}))


class ScriptedModel:
    """`requests` are what it was sent: paths and bodies."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.requests.append((path, body))
        if path.endswith("/chat/completions"):
            return _answer_chat(body)
        return _answer_response(body) if path.endswith("/responses") else _answer_message(body)


def _answer_chat(body: dict[str, Any]) -> dict[str, Any]:
    results = [each["content"] for each in body["messages"] if each["role"] == "tool"]
    assert {each["function"]["name"] for each in body["tools"]} >= {name for _, name, _ in CALLS}
    calls = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for id, name, arguments in CALLS
    ]
    message = {"role": "assistant", "content": "\n".join(results)} if results else {
        "role": "assistant", "content": None, "tool_calls": calls,
    }  # fmt: skip
    choice = {"index": 0, "message": message, "finish_reason": "stop" if results else "tool_calls"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {
        "id": "chat-1", "object": "chat.completion", "created": 0, "model": "scripted", "choices": [choice],
        "usage": usage,
    }  # fmt: skip


def _answer_response(body: dict[str, Any]) -> dict[str, Any]:
    items = body["input"] if isinstance(body["input"], list) else []
    results = [each["output"] for each in items if each.get("type") == "function_call_output"]
    output: list[dict[str, Any]] = [
        {
            "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "\n".join(results), "annotations": []}],
        }
    ] if results else [
        {
            "type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name,
            "arguments": json.dumps(arguments), "status": "completed",
        }
        for id, name, arguments in CALLS
    ]  # fmt: skip
    return {
        "id": "resp_1", "object": "response", "created_at": 0, "status": "completed", "model": "scripted",
        "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }  # fmt: skip


def _answer_message(body: dict[str, Any]) -> dict[str, Any]:
    results = [
        block["content"]
        for message in body["messages"]
        for block in (message["content"] if isinstance(message["content"], list) else [])
        if block["type"] == "tool_result"
    ]
    content = [{"type": "text", "text": "\n".join(results)}] if results else [
        {"type": "tool_use", "id": id, "name": name, "input": arguments} for id, name, arguments in CALLS
    ]  # fmt: skip
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "content": content,
        "stop_reason": "end_turn" if results else "tool_use", "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip


@contextmanager
def run_scripted_model() -> Iterator[ScriptedModel]:
    model = ScriptedModel()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
            raw = json.dumps(model.answer(self.path, body)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    model.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
