"""Test manifests: contracts without Python, and errors with file, line, field and fix."""

import json

import pytest

from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.importers.manifest import parse_contract, parse_manifest
from deputize.catalog.registration_rules import admit_contract
from deputize.core.contract.contract import TimeoutClass
from deputize.core.errors import ToolNotAdmitted
from tests.support.contracts import make_contract

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
    admit_contract(one)
    assert one.full_name == "crm.get_user"
    assert one.timeout.timeout_class is TimeoutClass.INTERACTIVE
    assert one.life.sunset_date == "2031-01-31"
    listed = "tools:\n" + "".join("  " + line for line in ("- " + ONE.replace("\n", "\n  ")).splitlines(True))
    assert parse_manifest(listed, source="crm.yaml") == [one]


def test_json_is_read_as_json() -> None:
    made = make_contract(title="Faces \N{GRINNING FACE}")
    text = json.dumps({"tools": [made.model_dump(mode="json")]})
    assert "\\ud83d" in text
    (found,) = parse_manifest(text, source="crm.json")
    assert found == made
    assert found.digest == made.digest


@pytest.mark.requirement("GOV-7")
def test_a_manifest_names_the_secret_its_tool_acts_with() -> None:
    text = ONE.replace("scopes: [crm:read]", "scopes: [crm:read], credential: vault, secret: crm/api-key")
    (one,) = parse_manifest(text, source="crm.yaml")
    admit_contract(one)
    assert (one.auth.credential, one.auth.secret) == ("vault", "crm/api-key")
    with pytest.raises(WrongDeclaration) as refused:
        parse_manifest(text.replace("crm/api-key", "../Other"), source="crm.yaml")
    assert refused.value.sentences == (
        "crm.yaml:14: auth.secret has an invalid format; "
        "use lower-case words, joined by slashes if there are several, as in crm/api-key",
    )


def test_every_manifest_error_has_its_line_and_its_fix() -> None:
    text = ONE.replace("effects: read", "effects: reads").replace("auth:", "auht:").replace("1.0.0", "'1'")
    with pytest.raises(WrongDeclaration) as refused:
        parse_manifest(text, source="crm.yaml")
    assert sorted(refused.value.sentences) == [
        "crm.yaml:13: effects is not a known value; write 'read', 'write' or 'destructive'",
        "crm.yaml:14: auht is not a field of a contract; did you mean auth?",
        "crm.yaml:1: auth is missing; add it",
        "crm.yaml:2: version has an invalid format; write MAJOR.MINOR.PATCH, as in 1.4.0",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1", "crm.yaml:1: this is not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: !!python/object:os.system {}", "crm.yaml:1: this is not valid YAML: could not determine a constructor"),
        ("name: a\nname: b", "crm.yaml:1: name is written twice; keep one of them"),
        ("tools: 3", "crm.yaml: tools must be a list and the only top-level field; remove the other fields"),
        ("- 1", "crm.yaml:1: the tool is not an object; write an object with the fields of a contract"),
        ("", "crm.yaml:1: the tool is not an object; write an object with the fields of a contract"),
        ("a: \x01", "crm.yaml: this is not valid YAML: "),
        ("a: 2030-02-31", "crm.yaml: this is not valid YAML: day is out of range for month"),
        ("[" * 5000, "crm.yaml: it is nested too deep; flatten it"),
    ],
)
def test_what_is_no_manifest_is_refused_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(WrongDeclaration) as refused:
        parse_manifest(text, source="crm.yaml")
    assert str(refused.value).startswith(sentence)


def test_repeated_parts_cannot_blow_up_a_small_file() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(WrongDeclaration, match="YAML aliases expand"):
        parse_manifest("\n".join(lines), source="crm.yaml")
    with pytest.raises(WrongDeclaration, match="YAML aliases expand"):
        parse_manifest("a: &a [*a]", source="crm.yaml")


def test_a_posted_contract_hears_every_reason() -> None:
    with pytest.raises(ToolNotAdmitted) as refused:
        parse_contract({"namespace": "crm", "name": "Get", "version": "1.0.0"})
    paths = {each["path"] for each in refused.value.details["reasons"]}
    assert {"/name", "/description", "/handler", "/effects", "/auth", "/timeout"} <= paths
    assert all(each["fix"] for each in refused.value.details["reasons"])


def test_one_manifest_does_not_mix_both_forms() -> None:
    with pytest.raises(WrongDeclaration, match=r"effects is not a field of manifests with a tool_id; write it under"):
        parse_manifest(
            "tool_id: get_user\nversion: 1.0.0\nname: Get a user\nprovider: crm\nprotocol: native\n"
            "description: Look up one user.\nparameters: {type: object}\neffects: read\n",
            source="crm.yaml",
        )
    assert parse_manifest(ONE + "priority: 4\n", source="crm.yaml")[0].priority == 4
