"""Parsing of policy files: each rule with its place, all errors at once, no hidden characters."""

from collections.abc import Callable
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.errors import PolicyInvalid
from deputize.govern.policy import policy_parser
from deputize.govern.policy.policy_parser import (
    MAX_REPORTED_ERRORS,
    PolicyFile,
    compute_set_digest,
    parse_policies,
    parse_with_diagnostics,
    split_rules,
)
from tests.support.policy_inputs import ANYTHING, make_files

pytestmark = pytest.mark.requirement("GOV-2")


def parse_errors(*texts: str) -> list[tuple[str, int, str]]:
    with pytest.raises(PolicyInvalid) as refused:
        parse_policies(make_files(*texts))
    return [(each["file"], each["line"], each["message"]) for each in refused.value.details["errors"]]


def test_each_rule_has_its_file_line_and_reason() -> None:
    text = f'// a comment; with @id("x")\n\n@id("a")\n@reason("Why; not")\n{ANYTHING}\n\n  @id("b/c.d:e-1") {ANYTHING}'
    first, second = parse_policies(make_files(text))
    assert (first.id, first.where, first.reason, first.effect, first.requires_approval) == (
        "a", "1.cedar:3", "Why; not", "permit", False,
    )  # fmt: skip
    assert (second.id, second.where, second.reason) == ("b/c.d:e-1", "1.cedar:7", "")
    (third,) = parse_policies(make_files('@id("a") @decision("ask") forbid (principal, action, resource);'))
    assert (third.effect, third.requires_approval) == ("forbid", True)


def test_a_semicolon_in_a_string_or_comment_ends_no_rule() -> None:
    text = '@id("a") permit (principal, action, resource) // not yet;\nwhen { context.task == "a;\\";b" };'
    (rule,) = parse_policies(make_files(text))
    assert rule.text == text


def test_every_error_of_every_file_is_reported_at_once() -> None:
    found = parse_errors(
        f'@id("a") {ANYTHING}\n\n{ANYTHING}\n@id("b") permit (principal, action);\n@id("a") {ANYTHING}',
        f'@id("a b") @decision("maybe") {ANYTHING}\n@id("c") permit (principal == ?principal, action, resource);\n'
        f'@id("nothing-permits") {ANYTHING}\n@id("d") @decison("ask") {ANYTHING}\n@id("e") permit (principal',
    )
    assert [(file, line) for file, line, _ in found] == [
        ("1.cedar", 3), ("1.cedar", 4), ("2.cedar", 1), ("2.cedar", 1), ("2.cedar", 2), ("2.cedar", 3),
        ("2.cedar", 4), ("2.cedar", 5), ("1.cedar", 5),
    ]  # fmt: skip
    told = "\n".join(message for _, _, message in found)
    for part in (
        "@id(",
        "this is not valid Cedar",
        "invalid id",
        '"ask"',
        "template",
        "choose another id",
        "@decison",
    ):
        assert part in told


def test_an_id_is_used_once_in_the_whole_set() -> None:
    ((file, line, message),) = parse_errors(f'@id("a") {ANYTHING}', f'\n@id("a") {ANYTHING}')
    assert (file, line) == ("2.cedar", 2)
    assert "1.cedar:1" in message


def test_two_files_of_one_path_are_refused() -> None:
    file = PolicyFile(path="a.cedar", text="")
    with pytest.raises(PolicyInvalid):
        parse_policies([file, file])


@pytest.mark.parametrize("sign", ["\u202e", "\u2066", "\u200b", "\ufeff"])
def test_a_character_that_hides_what_a_rule_does_is_refused(sign: str) -> None:
    ((_, line, message),) = parse_errors(f'\n@id("a") {ANYTHING} // {sign}\n')
    assert (line, f"U+{ord(sign):04X}" in message) == (2, True)


DEEP: dict[str, Callable[[int], str]] = {
    "brackets": lambda n: "(" * n + "true" + ")" * n,
    "lists": lambda n: "[" * n + "]" * n + " == 1",
    "records": lambda n: "{a:" * n + "1" + "}" * n + " == 1",
    "calls": lambda n: "ip(" * n + "1" + ")" * n,
    "choices": lambda n: "if true then " * n + "true" + " else true" * n,
    "attributes": lambda n: "context" + ".a" * n,
    "indices": lambda n: "context" + '["a"]' * n,
    "methods": lambda n: "context" + ".contains(1)" * n,
    "optional": lambda n: "context has a" + ".a" * n,
    "alternatives": lambda n: " || ".join(["principal.human"] * n),
    "sums": lambda n: "1 < " + " + ".join(["1"] * n),
    "signs": lambda n: "1 < " + " - ".join(["1"] * n),
    "behind a comment": lambda n: '// "\r' + "(" * n + "true" + ")" * n + '\n// "\n',
}


@pytest.mark.parametrize("kind", DEEP)
@pytest.mark.parametrize("depth", [200, 3_000, 30_000])
def test_a_rule_that_would_crash_the_parser_is_rejected(kind: str, depth: int) -> None:
    ((_, _, message),) = parse_errors(f'@id("a") permit (principal, action, resource) when {{ {DEEP[kind](depth)} }};')
    assert "nested too deeply" in message or "characters, more than" in message


def test_long_lists_and_many_clauses_are_not_deep() -> None:
    users = ", ".join(f'User::"u{number}"' for number in range(2_000))
    clauses = "when { principal.human } " * 200
    (rule,) = parse_policies(
        make_files(f'@id("a") permit (principal, action, resource) when {{ [{users}].contains(principal) }} {clauses};')
    )
    assert rule.id == "a"


def test_a_carriage_return_ends_a_comment_as_it_does_for_cedar() -> None:
    (rule,) = parse_policies(make_files(f'// nothing here\r@id("a") {ANYTHING}'))
    assert rule.text.startswith("@id")


def test_text_that_is_not_a_rule_is_reported() -> None:
    for text in ("permit", "hello;", ";", '@id("a")', '"', '@id("a") ;', "permit(principal, action, resource"):
        assert len(parse_errors(text)) == 1


def test_no_files_and_empty_files_are_no_rules() -> None:
    assert parse_policies(()) == ()
    assert parse_policies(make_files("", "// nothing yet\n")) == ()


def test_a_set_is_named_by_its_paths_and_texts() -> None:
    one, two = make_files("a", "b")
    assert compute_set_digest([one, two]) != compute_set_digest([two, one])
    assert compute_set_digest([one]) != compute_set_digest([PolicyFile(path="other", text=one.text)])


SCRAPS = st.sampled_from(['"', "\\", ";", "//", "\n", " ", "a", "@", "permit", '"x;"', "// y;\n"])


@given(st.lists(SCRAPS).map("".join))
def test_splitting_loses_only_space_and_comments(text: str) -> None:
    lines = text.split("\n")
    found = list(split_rules(text))
    assert [line for line, _ in found] == sorted(line for line, _ in found)
    for line, piece in found:
        assert piece.split("\n")[0] in lines[line - 1]
        assert not piece[0].isspace()
    if "//" not in text:
        assert "".join("".join(piece.split()) for _, piece in found) == "".join(text.split())


@given(st.lists(SCRAPS).map("".join))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    policy_parser, wrong = parse_with_diagnostics(make_files(text))
    assert policy_parser == ()
    assert all(each.message and each.line >= 1 for each in wrong)


@pytest.mark.parametrize(
    "text",
    ['\\"' * 300_000, '"' + "\\" * 300_001, "//\n" * 300_000, "\u200b\n" * 100_000],
    ids=["quotes that never end", "a string that never ends", "comments", "invisible characters"],
)
def test_adversarial_texts_are_parsed_quickly(text: str) -> None:
    began = thread_time()
    assert len(parse_with_diagnostics(make_files(text))[1]) <= MAX_REPORTED_ERRORS + 1
    assert thread_time() - began < 5


def test_the_number_of_rules_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_parser, "MAX_RULES", 20)
    text = "".join(f'@id("r{number}") {ANYTHING}\n' for number in range(30))
    ((file, line, message),) = parse_errors(text)
    assert (file, line) == ("1.cedar", 21)
    assert "the maximum" in message
