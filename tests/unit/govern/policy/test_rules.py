"""Policy files taken apart: every rule where it stands, every mistake at once, and nothing that reads otherwise."""

from collections.abc import Callable
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.errors import PolicyInvalid
from deputize.govern.policy import rules
from deputize.govern.policy.rules import MOST_TOLD, PolicyFile, examine, parse, pieces, set_digest
from tests.unit.govern.policy.asking import ANYTHING, files

pytestmark = pytest.mark.requirement("GOV-2")


def mistakes(*texts: str) -> list[tuple[str, int, str]]:
    with pytest.raises(PolicyInvalid) as refused:
        parse(files(*texts))
    return [(each["file"], each["line"], each["message"]) for each in refused.value.details["errors"]]


def test_each_rule_knows_its_file_its_line_and_what_its_author_said() -> None:
    text = f'// a comment; with @id("x")\n\n@id("a")\n@reason("Why; not")\n{ANYTHING}\n\n  @id("b/c.d:e-1") {ANYTHING}'
    first, second = parse(files(text))
    assert (first.id, first.where, first.reason, first.effect, first.asks) == (
        "a", "1.cedar:3", "Why; not", "permit", False,
    )  # fmt: skip
    assert (second.id, second.where, second.reason) == ("b/c.d:e-1", "1.cedar:7", "")
    (third,) = parse(files('@id("a") @decision("ask") forbid (principal, action, resource);'))
    assert (third.effect, third.asks) == ("forbid", True)


def test_a_semicolon_in_a_string_or_a_comment_ends_nothing() -> None:
    text = '@id("a") permit (principal, action, resource) // not yet;\nwhen { context.task == "a;\\";b" };'
    (rule,) = parse(files(text))
    assert rule.text == text


def test_every_mistake_of_every_file_is_told_at_once() -> None:
    found = mistakes(
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
        "cannot be read as Cedar",
        "other signs",
        '"ask"',
        "template",
        "choose another id",
        "@decison",
    ):
        assert part in told


def test_an_id_is_used_once_in_the_whole_set() -> None:
    ((file, line, message),) = mistakes(f'@id("a") {ANYTHING}', f'\n@id("a") {ANYTHING}')
    assert (file, line) == ("2.cedar", 2)
    assert "1.cedar:1" in message


def test_two_files_of_one_path_are_refused() -> None:
    file = PolicyFile(path="a.cedar", text="")
    with pytest.raises(PolicyInvalid):
        parse([file, file])


@pytest.mark.parametrize("sign", ["\u202e", "\u2066", "\u200b", "\ufeff"])
def test_a_character_that_hides_what_a_rule_does_is_refused(sign: str) -> None:
    ((_, line, message),) = mistakes(f'\n@id("a") {ANYTHING} // {sign}\n')
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
def test_a_rule_that_would_end_the_process_is_refused(kind: str, depth: int) -> None:
    ((_, _, message),) = mistakes(f'@id("a") permit (principal, action, resource) when {{ {DEEP[kind](depth)} }};')
    assert "nested too deeply" in message or "characters of at most" in message


def test_long_lists_and_many_clauses_are_not_deep() -> None:
    users = ", ".join(f'User::"u{number}"' for number in range(2_000))
    clauses = "when { principal.human } " * 200
    (rule,) = parse(
        files(f'@id("a") permit (principal, action, resource) when {{ [{users}].contains(principal) }} {clauses};')
    )
    assert rule.id == "a"


def test_a_carriage_return_ends_a_comment_as_it_does_for_cedar() -> None:
    (rule,) = parse(files(f'// nothing here\r@id("a") {ANYTHING}'))
    assert rule.text.startswith("@id")


def test_text_that_is_no_rule_is_told() -> None:
    for text in ("permit", "hello;", ";", '@id("a")', '"', '@id("a") ;', "permit(principal, action, resource"):
        assert len(mistakes(text)) == 1


def test_no_files_and_empty_files_are_no_rules() -> None:
    assert parse(()) == ()
    assert parse(files("", "// nothing yet\n")) == ()


def test_a_set_is_named_by_its_paths_and_texts() -> None:
    one, two = files("a", "b")
    assert set_digest([one, two]) != set_digest([two, one])
    assert set_digest([one]) != set_digest([PolicyFile(path="other", text=one.text)])


SCRAPS = st.sampled_from(['"', "\\", ";", "//", "\n", " ", "a", "@", "permit", '"x;"', "// y;\n"])


@given(st.lists(SCRAPS).map("".join))
def test_cutting_loses_nothing_but_space_and_comments(text: str) -> None:
    lines = text.split("\n")
    found = list(pieces(text))
    assert [line for line, _ in found] == sorted(line for line, _ in found)
    for line, piece in found:
        assert piece.split("\n")[0] in lines[line - 1]
        assert not piece[0].isspace()
    if "//" not in text:
        assert "".join("".join(piece.split()) for _, piece in found) == "".join(text.split())


@given(st.lists(SCRAPS).map("".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    rules, wrong = examine(files(text))
    assert rules == ()
    assert all(each.message and each.line >= 1 for each in wrong)


@pytest.mark.parametrize(
    "text",
    ['\\"' * 300_000, '"' + "\\" * 300_001, "//\n" * 300_000, "\u200b\n" * 100_000],
    ids=["quotes that never end", "a string that never ends", "comments", "invisible characters"],
)
def test_a_text_made_to_be_slow_is_not(text: str) -> None:
    began = process_time()
    assert len(examine(files(text))[1]) <= MOST_TOLD + 1
    assert process_time() - began < 5


def test_a_set_holds_only_so_many_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MOST_RULES", 20)
    text = "".join(f'@id("r{number}") {ANYTHING}\n' for number in range(30))
    ((file, line, message),) = mistakes(text)
    assert (file, line) == ("1.cedar", 21)
    assert "a set holds no more" in message
