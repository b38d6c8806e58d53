"""The folder of a development gateway."""

from pathlib import Path

from deputize.interfaces.cli.local.dev_environment import make_folder


def test_a_new_folder_keeps_itself_out_of_repositories(tmp_path: Path) -> None:
    folder = tmp_path / ".deputize"
    make_folder(folder)
    assert (folder / ".gitignore").read_text() == "*\n"


def test_a_folder_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    make_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []
