"""Manifests: the same contracts without Python, and mistakes told with file, line, field and fix."""

import json
from pathlib import Path

import pytest

from deputize.catalog.admission import admit
from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.importers.manifest import contract_from, load_manifests, parse_manifest
from deputize.core.contract import TimeoutClass
from deputize.core.errors import NotAdmitted
from tests.unit.catalog.contracts import contract

pytestmark = pytest.mark.requirement("CON-2")

ONE = """\
name: crm.get_user
version: 1.0.0
description: Look up one user by number.
handler: {driver: python, target: "tools.crm:get_user"}
input_schema:
  type: object
  additionalProperties: false
  required: [id]
  properties:
    id: {type: integer, description: Number of the user, examples: [7]}
output_schema: {type: object}
examples: [{id: 7}]
effects: read
auth: {scopes: [crm:read]}
timeout: interactive
idempotency: idempotent
life: {sunset_date: 2031-01-31}
"""


def test_one_tool_per_file_or_a_list_of_them() -> None:
    (one,) = parse_manifest(ONE, source="crm.yaml")
    admit(one)
    assert one.full_name == "crm.get_user"
    assert one.timeout.timeout_class is TimeoutClass.INTERACTIVE
    assert one.life.sunset_date == "2031-01-31"
    listed = "tools:\n" + "".join("  " + line for line in ("- " + ONE.replace("\n", "\n  ")).splitlines(True))
    assert parse_manifest(listed, source="crm.yaml") == [one]


def test_json_is_read_as_json() -> None:
    made = contract(title="Faces \N{GRINNING FACE}")
    text = json.dumps({"tools": [made.model_dump(mode="json")]})
    assert "\\ud83d" in text
    (found,) = parse_manifest(text, source="crm.json")
    assert found == made
    assert found.digest == made.digest


@pytest.mark.requirement("GOV-7")
def test_a_manifest_names_the_secret_its_tool_acts_with() -> None:
    text = ONE.replace("scopes: [crm:read]", "scopes: [crm:read], credential: vault, secret: crm/api-key")
    (one,) = parse_manifest(text, source="crm.yaml")
    admit(one)
    assert (one.auth.credential, one.auth.secret) == ("vault", "crm/api-key")
    with pytest.raises(WrongDeclaration) as refused:
        parse_manifest(text.replace("crm/api-key", "../Other"), source="crm.yaml")
    assert refused.value.sentences == (
        "crm.yaml:14: auth.secret is not spelt as it must be; "
        "use lower-case words, joined by slashes if there are several, as in crm/api-key",
    )


def test_every_mistake_is_told_with_its_line_and_its_fix() -> None:
    text = ONE.replace("effects: read", "effects: reads").replace("auth:", "auht:").replace("1.0.0", "'1'")
    with pytest.raises(WrongDeclaration) as refused:
        parse_manifest(text, source="crm.yaml")
    assert sorted(refused.value.sentences) == [
        "crm.yaml:13: effects is not a known value; write 'read', 'write' or 'destructive'",
        "crm.yaml:14: auht is not a field of a contract; did you mean auth?",
        "crm.yaml:1: auth is missing; add it",
        "crm.yaml:2: version is not spelt as it must be; write MAJOR.MINOR.PATCH, as in 1.4.0",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1", "crm.yaml:1: this is not YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: !!python/object:os.system {}", "crm.yaml:1: this is not YAML: could not determine a constructor"),
        ("name: a\nname: b", "crm.yaml:1: name is given twice; keep one of them"),
        ("tools: 3", "crm.yaml: beside tools: nothing else may stand, and it must be a list"),
        ("- 1", "crm.yaml:1: the tool is no tool; write its fields by name"),
        ("", "crm.yaml:1: the tool is no tool; write its fields by name"),
        ("a: \x01", "crm.yaml: this is not YAML: "),
        ("a: 2030-02-31", "crm.yaml: this is not YAML: day is out of range for month"),
        ("[" * 5000, "crm.yaml: it nests too deep to be read; flatten it"),
    ],
)
def test_what_is_no_manifest_is_refused_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(WrongDeclaration) as refused:
        parse_manifest(text, source="crm.yaml")
    assert str(refused.value).startswith(sentence)


def test_repeated_parts_cannot_blow_up_a_small_file() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(WrongDeclaration, match="too large"):
        parse_manifest("\n".join(lines), source="crm.yaml")
    with pytest.raises(WrongDeclaration, match="too large"):
        parse_manifest("a: &a [*a]", source="crm.yaml")


def test_a_posted_contract_hears_every_reason() -> None:
    with pytest.raises(NotAdmitted) as refused:
        contract_from({"namespace": "crm", "name": "Get", "version": "1.0.0"})
    paths = {each["path"] for each in refused.value.details["reasons"]}
    assert {"/name", "/description", "/handler", "/effects", "/auth", "/timeout"} <= paths
    assert all(each["fix"] for each in refused.value.details["reasons"])


def test_manifests_are_found_by_pattern(tmp_path: Path) -> None:
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "crm.yaml").write_text(ONE)
    assert [each.full_name for each in load_manifests(["manifests/*.yaml"], tmp_path)] == ["crm.get_user"]
