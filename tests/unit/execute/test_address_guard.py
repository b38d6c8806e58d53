"""The clients of other packages cannot connect to forbidden addresses; code outside the guard is left alone."""

import socket
import threading

import pytest

from deputize.execute.address_guard import refuse_forbidden_addresses


def connect(host: str, port: int = 9) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as client:
        client.setblocking(False)
        client.connect((host, port))


@pytest.mark.parametrize("host", ["169.254.169.254", "168.63.129.16", "0.0.0.0", "fd00:ec2::254", "localhost"])
def test_a_forbidden_address_is_refused_before_the_connection(host: str) -> None:
    with refuse_forbidden_addresses(), pytest.raises(OSError, match="not allowed"):
        connect(host)


def test_a_local_socket_is_refused() -> None:
    with (
        refuse_forbidden_addresses(),
        socket.socket(socket.AF_UNIX) as client,
        pytest.raises(OSError, match="not allowed"),
    ):
        client.connect("/nowhere")


def test_other_addresses_and_other_threads_are_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, refuse_forbidden_addresses():
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        errors: list[str] = []

        def connect_elsewhere() -> None:
            try:
                connect("0.0.0.0", 1)
            except OSError as error:
                errors.append(str(error))

        thread = threading.Thread(target=connect_elsewhere)
        thread.start()
        thread.join(30)
    assert not any("not allowed" in each for each in errors)


def test_the_guard_ends_with_its_block_and_may_be_nested() -> None:
    with refuse_forbidden_addresses():
        with refuse_forbidden_addresses():
            pass
        with pytest.raises(OSError, match="not allowed"):
            connect("0.0.0.0", 1)
    with pytest.raises((BlockingIOError, ConnectionRefusedError)):
        connect("0.0.0.0", 1)
