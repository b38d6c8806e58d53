"""An external decision point: a program of its own that speaks AuthZEN and behaves as its path says.

`POST /BEHAVIOUR/access/v1/evaluation`; `GET /asked` lists what it was asked. Prints its port when it listens.
"""

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWERS: dict[str, Any] = {
    "allow": {"decision": True},
    "deny": {
        "decision": False,
        "context": {
            "reason_admin": {"403": "policy C076E82F"},
            "reason_user": {"403": "Insufficient privileges.\x1b[31m"},
        },
    },
    "deny-by-rules": {"decision": False, "context": {"rules": ["no weekends", "vip/only"], "reason": "closed"}},
    "deny-by-id": {"decision": False, "context": {"id": "7", "reason_user": {"en": "No."}}},
    "deny-asking": {"decision": False, "context": {"ask": True}},
    "ask": {"decision": True, "context": {"ask": True, "rules": ["big-amount"]}},
    "ask-obliged": {"decision": True, "context": {"obligations": [{"id": "log", "level": "info"}, {"id": "ask"}]}},
    "log-obliged": {"decision": True, "context": {"obligations": ["log"]}},
    "deny-obliged": {"decision": False, "context": {"obligations": [{"id": "mask", "fields": ["/iban"]}]}},
    "mask-obliged": {"decision": True, "context": {"obligations": [{"id": "mask", "fields": ["/iban"]}]}},
    "ask-somebody-obliged": {"decision": True, "context": {"obligations": [{"id": "ask", "approvers": ["cfo"]}]}},
    "odd-obligations": {"decision": True, "context": {"obligations": {"id": "log"}}},
    "number-obligation": {"decision": True, "context": {"obligations": 0}},
    "odd-obligation": {"decision": True, "context": {"obligations": [["log"]]}},
    "no-decision": {"context": {}},
    "text": {"decision": "true"},
    "number": {"decision": 1},
    "list": [{"decision": True}],
    "odd-context": {"decision": True, "context": "fine"},
    "odd-ask": {"decision": True, "context": {"ask": "yes"}},
    "odd-rules": {"decision": True, "context": {"rules": "all"}},
}
RAW = {
    "garbage": b"<html>welcome</html>",
    "empty": b"",
    "twice": b'{"decision":false,"decision":true}',
    "deep": b"[" * 100_000,
    "endless": b'{"decision":true,"context":{"x":"' + b"x" * 200_000 + b'"}}',
}
STATUS = {"created": 201, "denied-by-status": 403, "broken": 500, "elsewhere": 307}
requests: list[dict[str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(200, json.dumps(requests).encode())

    def do_POST(self) -> None:
        behaviour, _, path = self.path[1:].partition("/")
        question = json.loads(self.rfile.read(int(self.headers["content-length"])))
        requests.append({"question": question, "authorization": self.headers["authorization"]})
        if path != "access/v1/evaluation" or not _is_valid_request(question):
            self._send(400, b'"not a question of the Authorization API"')
        elif behaviour == "slow":
            time.sleep(5)
            self._send(200, b'{"decision":true}')
        elif behaviour in STATUS:
            self._send(STATUS[behaviour], b'{"decision":true}', location="/allow/access/v1/evaluation")
        elif behaviour in RAW:
            self._send(200, RAW[behaviour])
        elif behaviour == "by-user":
            self._send(200, json.dumps({"decision": question["subject"]["id"] == "ana"}).encode())
        else:
            self._send(200, json.dumps(ANSWERS[behaviour]).encode())

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _is_valid_request(question: Any) -> bool:
    """What the API requires of a request."""
    return (
        all(isinstance(question[part][key], str) for part in ("subject", "resource") for key in ("type", "id"))
        and isinstance(question["action"]["name"], str)
        and isinstance(question.get("context", {}), dict)
    )


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_port, flush=True)
    server.serve_forever()
