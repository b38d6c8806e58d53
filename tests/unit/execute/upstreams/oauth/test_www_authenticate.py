"""Test parsing of `WWW-Authenticate` challenges as the RFCs define them."""

from hypothesis import given
from hypothesis import strategies as st

from deputize.execute.upstreams.oauth.www_authenticate import Challenge, merge_scopes, parse_challenge, parse_scopes

TEXT = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=60)


def test_a_challenge_names_the_metadata_url_and_the_scopes() -> None:
    header = 'Bearer resource_metadata="https://a/b", scope="files:read files:write", error="insufficient_scope"'
    found = parse_challenge(header)
    assert found.resource_metadata == "https://a/b"
    assert found.scopes == ("files:read", "files:write")
    assert found.is_scope_insufficient


def test_only_the_challenge_for_bearer_tokens_counts() -> None:
    header = 'Basic realm="a, Bearer scope=\\"x\\"", scope="of basic", bearer scope=one , DPoP scope="of dpop"'
    assert parse_challenge(header).scopes == ("one",)
    assert parse_challenge('Digest nonce="a", scope="b"') == Challenge()


def test_what_cannot_be_read_says_nothing() -> None:
    for header in ("", "Bearer", "Bearer ,,,", 'Bearer scope="never ended', "=?", "Bearer " + "a" * 10_000):
        assert parse_challenge(header).scopes == ()


@given(TEXT, TEXT)
def test_whatever_stands_in_quotes_is_one_value(place: str, realm: str) -> None:
    def quote_text(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    found = parse_challenge(f"Bearer realm={quote_text(realm)}, resource_metadata={quote_text(place)}")
    assert found.resource_metadata == place
    assert found.scopes == ()


@given(st.text(max_size=200))
def test_no_header_breaks_the_reader(header: str) -> None:
    parse_challenge(header)


def test_a_scope_is_kept_once_and_only_if_it_is_one() -> None:
    assert parse_scopes('a b a "c" \x00') == ("a", "b")
    assert merge_scopes(("a", "b"), ("b", "c")) == ("a", "b", "c")
