"""Descriptors are reserved for all connections that the settings allow."""

import resource
from collections.abc import Iterator

import pytest

from deputize.core.settings import GrpcSettings, ServerSettings, Settings
from deputize.interfaces import server


@pytest.fixture
def hard_limit() -> Iterator[int]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def make_settings(port: int | None, max_connections: int) -> Settings:
    return Settings.model_construct(
        server=ServerSettings(max_connections=max_connections), grpc=GrpcSettings(port=port, max_connections=100)
    )


@pytest.mark.parametrize(("port", "more"), [(None, 0), (0, 100)])
def test_connections_of_grpc_get_descriptors_too(hard_limit: int, port: int | None, more: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard_limit))
    assert server._reserve_descriptors(make_settings(port, 64)).max_connections == 64
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 64 + server._RESERVED_DESCRIPTORS + more
