"""A manifest names the preview of a function that brings none; without one, what is gone for good is refused."""

from pathlib import Path

import pytest

from deputize.core.preview import Preview
from deputize.doors.cli.loading import Loaded, load_files

pytestmark = pytest.mark.requirement("GOV-4")

PYTHON = '''
from deputize import Preview, tool

def drop(id, context=None):
    return id

async def would_drop(id):
    return Preview(impact={"id": id})

@tool(effects="read", examples=[{}], preview=lambda: Preview(impact={"own": 1}))
def look() -> int:
    """Look at something."""
    return 1
'''
MANIFEST = """
name: crm.drop
version: 1.0.0
description: Drop a customer for good.
effects: destructive
resources: ["delete crm.users/{id}"]
auth: {scopes: [crm:write]}
timeout: standard
idempotency: cannot
input_schema:
  type: object
  additionalProperties: false
  properties: {id: {type: integer, description: Which one., examples: [7]}}
output_schema: {type: integer}
examples: [{id: 7}]
handler: HANDLER
"""


def loaded(folder: Path, handler: str, more: str = "") -> Loaded:
    (folder / "tools").mkdir(exist_ok=True)
    (folder / "tools" / "crm.py").write_text(PYTHON)
    (folder / "tools" / "crm.yaml").write_text(MANIFEST.replace("HANDLER", handler) + more)
    return load_files(["tools/*.py"], ["tools/*.yaml"], folder)


async def test_a_function_of_the_same_files_previews(tmp_path: Path) -> None:
    found = loaded(tmp_path, '{target: "tools.crm:drop", preview: "tools.crm:would_drop"}')
    assert not found.refusals
    drop = next(each for each in found.tools if each.contract.full_name == "crm.drop")
    assert drop.contract.preview
    assert drop.preview is not None
    assert await drop.preview(id=7, other=8) == Preview(impact={"id": 7})
    assert not drop.previews_with_context


def test_a_function_that_brings_a_preview_keeps_it(tmp_path: Path) -> None:
    found = loaded(tmp_path, '{target: "tools.crm:look"}', "preview: true\n")
    drop = next(each for each in found.tools if each.contract.full_name == "crm.drop")
    assert drop.preview is not None
    assert drop.preview() == Preview(impact={"own": 1})


@pytest.mark.parametrize(
    ("handler", "more", "why"),
    [
        ('{target: "tools.crm:drop"}', "", "preview is missing, and nothing takes back what this tool does"),
        ('{target: "tools.crm:drop"}', "preview: true\n", "brings none; name one in handler.preview"),
        ('{target: "tools.crm:drop", preview: "tools.crm:nothing"}', "", "handler.preview tools.crm:nothing names no"),
        ('{target: "tools.crm:drop", preview: "tools.crm:would_drop"}', "preview: false\n", "is not what preview says"),
    ],
)
def test_one_that_is_not_there_is_told(tmp_path: Path, handler: str, more: str, why: str) -> None:
    (refusal,) = loaded(tmp_path, handler, more).refusals
    assert why in " ".join(refusal.reasons)
