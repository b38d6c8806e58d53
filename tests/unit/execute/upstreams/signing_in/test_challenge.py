"""What a refusal says about how to get in is read as the RFCs write it, and nothing else is."""

from hypothesis import given
from hypothesis import strategies as st

from deputize.execute.upstreams.signing_in.challenge import Challenge, challenge_of, scopes_of, together

TEXT = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=60)


def test_a_challenge_names_where_to_look_and_what_to_ask_for() -> None:
    header = 'Bearer resource_metadata="https://a/b", scope="files:read files:write", error="insufficient_scope"'
    found = challenge_of(header)
    assert found.resource_metadata == "https://a/b"
    assert found.scopes == ("files:read", "files:write")
    assert found.wants_more


def test_only_the_challenge_for_bearer_tokens_counts() -> None:
    header = 'Basic realm="a, Bearer scope=\\"x\\"", scope="of basic", bearer scope=one , DPoP scope="of dpop"'
    assert challenge_of(header).scopes == ("one",)
    assert challenge_of('Digest nonce="a", scope="b"') == Challenge()


def test_what_cannot_be_read_says_nothing() -> None:
    for header in ("", "Bearer", "Bearer ,,,", 'Bearer scope="never ended', "=?", "Bearer " + "a" * 10_000):
        assert challenge_of(header).scopes == ()


@given(TEXT, TEXT)
def test_whatever_stands_in_quotes_is_one_value(place: str, realm: str) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    found = challenge_of(f"Bearer realm={quoted(realm)}, resource_metadata={quoted(place)}")
    assert found.resource_metadata == place
    assert found.scopes == ()


@given(st.text(max_size=200))
def test_no_header_breaks_the_reader(header: str) -> None:
    challenge_of(header)


def test_a_scope_is_kept_once_and_only_if_it_is_one() -> None:
    assert scopes_of('a b a "c" \x00') == ("a", "b")
    assert together(("a", "b"), ("b", "c")) == ("a", "b", "c")
