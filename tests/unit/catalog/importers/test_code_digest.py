"""Test the digest of a tool's code: everything the project brings to it counts, and only what was really compiled."""

import importlib.util
import os
import py_compile
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deputize.core.contract.tools import PythonTool
from deputize.interfaces.cli.local.tool_loader import load_tool_files

pytestmark = pytest.mark.requirement("GOV-3")

TOOL = '''
from deputize import tool
from .shared import WORD

@tool(effects="read", examples=[{}])
def look() -> str:
    """Look at something."""
    from .later import LATE
    return WORD + LATE
'''
FILES = {
    "tools/crm.py": TOOL,
    "tools/shared.py": "from .deep.base import BASE\nWORD = 'word' + BASE\n",
    "tools/deep/__init__.py": "",
    "tools/deep/base.py": "BASE = 'base'\n",
    "tools/later.py": "from .deep import latest\nLATE = 'late'\n",
    "tools/deep/latest.py": "import json\n",
    "tools/other.py": "OTHER = 1\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def _load_tool(project: Path) -> PythonTool:
    (tool,) = load_tool_files(["tools/crm.py"], [], project).tools
    assert isinstance(tool, PythonTool)
    return tool


def _load_digest(project: Path) -> str:
    found = load_tool_files(["tools/crm.py"], [], project)
    assert not found.refusals
    (tool,) = found.tools
    return tool.code_digest


def test_the_same_files_have_the_same_digest_anywhere(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (project / "tools").rename(elsewhere / "tools")
    there = _load_digest(elsewhere)
    (elsewhere / "tools").rename(project / "tools")
    assert _load_digest(project) == there
    assert there.startswith("sha256:")


@pytest.mark.parametrize("name", [name for name in FILES if name != "tools/other.py"])
def test_every_module_that_a_tool_imports_counts_also_inside_its_functions(project: Path, name: str) -> None:
    before = _load_digest(project)
    (project / name).write_text(FILES[name] + "# edited\n")
    assert _load_digest(project) != before


def test_a_module_that_it_does_not_import_does_not_count(project: Path) -> None:
    before = _load_digest(project)
    (project / "tools/other.py").write_text("OTHER = 2\n")
    assert _load_digest(project) == before


def test_cached_bytecode_of_other_code_is_not_executed(project: Path) -> None:
    """An attacker writes a cache file that looks as if it belonged to the source."""
    source = project / "tools" / "shared.py"
    stat = source.stat()
    evil = project / "evil.py"
    evil.write_text("WORD = 'evil'".ljust(stat.st_size))
    os.utime(evil, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    py_compile.compile(str(evil), cfile=importlib.util.cache_from_source(str(source)), doraise=True)
    tool = _load_tool(project)
    assert tool.run() == "wordbaselate"


def test_a_module_that_changed_before_it_was_imported_is_not_imported(project: Path) -> None:
    tool = _load_tool(project)
    (project / "tools" / "later.py").write_text("LATE = 'evil'\n")
    with pytest.raises(ImportError, match="changed after the tools were loaded"):
        tool.run()


def test_an_edit_after_loading_changes_neither_the_code_nor_its_digest(project: Path) -> None:
    tool = _load_tool(project)
    (project / "tools" / "shared.py").write_text("WORD = 'evil'\n")
    assert tool.run() == "wordbaselate"
    assert _load_digest(project) != tool.code_digest


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"# coding: latin-1\n# caf\xe9\n", "is not UTF-8 text at byte 23: save it as UTF-8"),
        # Shown as one comment, and compiled as two lines.
        (b"# coding: unicode_escape\n# \\nimport os\n", "declares the encoding unicode_escape"),
        (b"# coding: utf-7\n", "declares the encoding utf-7"),
        (b"# coding: no-such\n", "declares its encoding wrongly (unknown encoding"),
    ],
)
@pytest.mark.parametrize("file", ["tools/crm.py", "tools/shared.py"])
def test_source_that_python_reads_as_other_text_than_people_is_refused(
    project: Path, file: str, head: bytes, reason: str
) -> None:
    (project / file).write_bytes(head + (project / file).read_bytes())
    (refusal,) = load_tool_files(["tools/crm.py"], [], project).refusals
    assert reason in refusal.reasons[0]


def test_source_with_a_byte_order_mark_or_a_declared_utf_8_is_loaded(project: Path) -> None:
    (project / "tools/crm.py").write_bytes(b"\xef\xbb\xbf# coding: utf-8\n" + (project / "tools/crm.py").read_bytes())
    assert _load_digest(project)
