"""Test where `deputize observe report` writes: for its owner, and over nothing but an earlier report."""

from pathlib import Path

import pytest

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.commands.observe import report as command
from deputize.interfaces.cli.local import report_files

pytestmark = pytest.mark.requirement("NEW-8")
PAGE = "<!doctype html>\n<p>a page</p>\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_report_is_for_its_owner_alone_and_replaces_an_earlier_one() -> None:
    page = Path("report.html")
    page.write_text(PAGE)
    page.chmod(0o644)
    report_files.write_page(page, PAGE + "new")
    assert page.read_text() == PAGE + "new"
    assert page.stat().st_mode & 0o777 == 0o600


def test_a_report_replaces_nothing_else_and_this_is_refused_before_it_is_made(folder: Path) -> None:
    Path("deputize.toml").write_text("[policy]\n")
    Path("kept.html").write_text(PAGE)
    Path("link.html").symlink_to("kept.html")
    Path("folder.html").mkdir()
    for name in ("deputize.toml", "link.html", "folder.html"):
        with pytest.raises(ConfigError):
            # No gateway runs, and none is asked.
            command.report(html=Path(name))
        with pytest.raises(ConfigError):
            report_files.write_page(Path(name), PAGE)
    assert Path("deputize.toml").read_text() == "[policy]\n"
    assert Path("link.html").is_symlink()


def test_a_policy_that_exists_is_refused_before_the_report_is_made() -> None:
    Path("observed.cedar").write_text("// mine")
    with pytest.raises(ConfigError, match="exists already"):
        command.report(write_policy=Path("observed.cedar"))
    with pytest.raises(ConfigError):
        report_files.write_policy_file(Path("observed.cedar"), "// other")
    assert Path("observed.cedar").read_text() == "// mine"


def test_a_missing_folder_and_one_file_for_both_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError):
        command.report(html=folder / "missing" / "report.html")
    with pytest.raises(ConfigError):
        command.report(html=Path("x"), write_policy=folder / "x")
    Path("unreadable").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        report_files.write_page(Path("unreadable/x" + "y" * 300), PAGE)
