"""Reserve a loopback port for a server that another process will start."""

import socket
from typing import Final

_sockets: Final[list[socket.socket]] = []


def reserve_port() -> int:
    """Reserve a port until this process ends, also while the server that listens on it is down.

    A port that is only found free may be given to another process before the server listens. The socket that holds this
    one does not listen: a server that sets SO_REUSEADDR, as servers do, can listen on it, and no other process gets it.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _sockets.append(holder)
    return int(holder.getsockname()[1])
