"""Readers of files, rows and ETags, for `read_state=`."""

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from deputize import digest_files, digest_rows, read_etag, tool
from deputize.catalog.importers import state_readers
from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.importers.python import ATTRIBUTE

pytestmark = [pytest.mark.requirement("INV-7"), pytest.mark.requirement("INV-8")]


def test_files_are_digested_and_a_change_shows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1")
    (tmp_path / "b.txt").write_text("2")
    read = digest_files("*.csv", "{name}.txt", root=tmp_path)
    first = read(name="b")
    assert first["count"] == 2
    assert list(first["files"]) == ["a.csv", "b.txt"]
    assert read(name="b") == first
    (tmp_path / "b.txt").write_text("3")
    assert read(name="b") != first
    assert read(name="new")["count"] == 1


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "link", "a\0b"])
def test_an_argument_cannot_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret").write_text("s")
    (folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match="leaves the folder"):
        digest_files("{name}", root=folder)(name=name)


def test_an_argument_is_no_pattern(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1")
    assert digest_files("{name}.csv", root=tmp_path)(name="*")["count"] == 0


def test_a_pipe_is_not_waited_for_and_a_folder_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "sub").mkdir()
    open_before = len(os.listdir("/proc/self/fd"))
    assert digest_files("*", root=tmp_path)()["files"] == {"pipe": "not a file (p)", "sub": "not a file (d)"}
    assert len(os.listdir("/proc/self/fd")) <= open_before


def test_sizes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / name).write_text("12345")
    monkeypatch.setattr(state_readers, "MAX_BYTES", 14)
    with pytest.raises(ValueError, match="more than 14 bytes"):
        digest_files("*", root=tmp_path)()
    monkeypatch.setattr(state_readers, "MAX_BYTES", 15)
    assert digest_files("*", root=tmp_path)()["count"] == 3
    monkeypatch.setattr(state_readers, "MAX_FILES", 2)
    with pytest.raises(ValueError, match="more than 2 files"):
        digest_files("*", root=tmp_path)()


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", "**/*"])
def test_a_pattern_that_leaves_its_folder_is_refused_where_it_is_declared(pattern: str) -> None:
    with pytest.raises(WrongDeclaration, match="leaves the folder"):
        digest_files(pattern)


def test_a_misspelled_argument_is_refused_where_it_is_declared() -> None:
    with pytest.raises(WrongDeclaration, match="has a parameter fruits, which is not an argument"):

        @tool(effects="read", read_state=digest_files("{fruits}.csv"))
        def count(fruit: str) -> int:
            """Count the fruit of a kind."""
            return len(fruit)


def test_a_declared_reader_gets_the_arguments_it_names(tmp_path: Path) -> None:
    (tmp_path / "pear.csv").write_text("1")

    @tool(effects="read", read_state=digest_files("{fruit}.csv", root=tmp_path))
    def count(fruit: str, limit: int = 3) -> int:
        """Count the fruit of a kind."""
        return limit

    read = getattr(count, ATTRIBUTE).read_state
    assert not asyncio.iscoroutinefunction(read)
    assert read(fruit="pear", limit=2)["count"] == 1


def test_rows_are_counted_and_digested_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stock.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table stock (fruit text, number int)")
        connection.executemany("insert into stock values (?, ?)", [("apple", 1), ("apple", 2), ("pear", 3)])

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path)

    read = digest_rows(connect, "select * from stock where fruit = ?", "fruit")
    first = read(fruit="apple")
    assert first["rows"] == 2
    descending_read = digest_rows(connect, "select * from stock where fruit = ? order by number desc", "fruit")
    assert descending_read(fruit="apple") == first
    assert read(fruit="' or 1=1 --")["rows"] == 0
    with closing(connect()) as connection, connection:
        connection.execute("update stock set number = 9 where number = 2")
    assert read(fruit="apple") != first
    monkeypatch.setattr(state_readers, "MAX_ROWS", 1)
    with pytest.raises(ValueError, match="more than 1 rows or"):
        read(fruit="apple")


class _Rows(list[object]):
    """Stands for a connection and its cursor, of a driver with rows of another form."""

    def cursor(self) -> "_Rows":
        return self

    def execute(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("before", "after"),
    [({"number": 1}, {"number": 2}), ((memoryview(b"1"),), (memoryview(b"2"),)), ((bytearray(b"1"),), (b"2",))],
)
def test_rows_of_other_drivers_are_digested_by_their_values(before: object, after: object) -> None:
    first_digest = digest_rows(partial(_Rows, [before]), "select")()
    assert digest_rows(partial(_Rows, [before]), "select")() == first_digest
    assert digest_rows(partial(_Rows, [after]), "select")() != first_digest


def test_a_value_without_a_text_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="no text of their own"):
        digest_rows(lambda: _Rows([(object(),)]), "select")()


class _Server(BaseHTTPRequestHandler):
    answers: ClassVar[dict[str, tuple[int, str | None]]] = {}
    paths: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self.paths.append(f"{self.path} {self.headers.get('Authorization')}")
        status, etag = self.answers.get(self.path, (404, None))
        self.send_response(status)
        if etag is not None:
            self.send_header("ETag", etag)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server_url() -> Iterator[str]:
    _Server.answers.clear()
    _Server.paths.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_an_etag_is_read_and_nothing_there_is_a_state(server_url: str) -> None:
    read = read_etag(f"{server_url}/items/{{item}}?view=full", lambda: {"Authorization": "Bearer t"})
    assert read(item="a/../b?c") == {"etag": None}
    assert _Server.paths == ["/items/a%2F..%2Fb%3Fc?view=full Bearer t"]
    _Server.answers["/items/7?view=full"] = (200, '"v1"')
    assert read(item=7) == {"etag": '"v1"'}


@pytest.mark.parametrize(("status", "etag"), [(200, None), (302, '"v1"'), (500, '"v1"'), (200, "x" * 1025)])
def test_an_answer_that_says_nothing_about_the_state_is_refused(server_url: str, status: int, etag: str | None) -> None:
    _Server.answers["/"] = (status, etag)
    with pytest.raises(ValueError, match=str(status)):
        read_etag(server_url)()


@pytest.mark.parametrize("item", ["", ".", ".."])
def test_an_argument_that_names_no_resource_is_refused(server_url: str, item: str) -> None:
    with pytest.raises(ValueError, match="names no resource"):
        read_etag(f"{server_url}/items/{{item}}")(item=item)
    assert _Server.paths == []


@pytest.mark.parametrize("url", ["ftp://shop.example/a", "https://{host}/a", "https://u:p@shop.example/", "/a"])
def test_a_url_whose_host_an_agent_could_choose_is_refused_where_it_is_declared(url: str) -> None:
    with pytest.raises(WrongDeclaration, match="read_etag"):
        read_etag(url)
