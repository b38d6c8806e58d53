"""A synchronous client needs no `with`: it connects when it is used, and ends with its program."""

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from deputize import SyncClient

_PROGRAM = """
import sys
from deputize import SyncClient
gateway = SyncClient(sys.argv[1], "token")
print(gateway.tools()["tools"])
"""


class _Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b'{"tools": []}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def finish(self) -> None:
        super().finish()
        self.server.closed.release()  # type: ignore[attr-defined]  # set by the fixture

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint) as server:
        server.daemon_threads = True
        server.closed = threading.Semaphore(0)  # type: ignore[attr-defined]  # counts connections that ended
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _url(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def test_it_works_without_with_and_after_a_close(server: ThreadingHTTPServer) -> None:
    gateway = SyncClient(_url(server), "token")
    assert gateway.tools() == {"tools": []}
    gateway.close()
    gateway.close()
    assert server.closed.acquire(timeout=60)  # type: ignore[attr-defined]  # set by the fixture
    assert gateway.tools() == {"tools": []}
    gateway.close()


def test_a_client_that_is_forgotten_closes_its_connections(server: ThreadingHTTPServer) -> None:
    assert SyncClient(_url(server), "token").tools() == {"tools": []}
    gc.collect()
    assert server.closed.acquire(timeout=60)  # type: ignore[attr-defined]  # set by the fixture


def test_threads_share_one_connection_pool(server: ThreadingHTTPServer) -> None:
    gateway = SyncClient(_url(server), "token")
    with ThreadPoolExecutor(4) as threads:
        clients = list(threads.map(lambda _: gateway._connect(), range(4)))
    assert len(set(map(id, clients))) == 1
    gateway.close()


def test_a_program_that_never_closes_it_ends_without_complaint(server: ThreadingHTTPServer) -> None:
    words = [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", _PROGRAM, _url(server)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
