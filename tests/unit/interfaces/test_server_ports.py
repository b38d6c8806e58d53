"""The port of the metrics, where two processes of one host want the same."""

import socket

import pytest

from deputize.core.config_error import ConfigError
from deputize.core.settings import ServerSettings
from deputize.interfaces import server


def test_a_port_that_nobody_chose_makes_room_and_a_chosen_one_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with server._bind_metrics_socket(ServerSettings(port=port - 1), server.PORT_ATTEMPTS) as found:
            assert port < found.getsockname()[1] < port + server.PORT_ATTEMPTS
        with (
            pytest.raises(ConfigError, match=f"Port {port} on 127.0.0.1 is in use"),
            server._bind_metrics_socket(ServerSettings(metrics_port=port), 1),
        ):
            pass
