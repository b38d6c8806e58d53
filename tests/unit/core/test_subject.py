"""A subject is an issuer's: no two subjects are stored under one text, whatever names their issuers give them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.subject import build_subject, parse_subject, qualify_subject
from deputize.govern.approvals.requirements import normalize_person

pytestmark = pytest.mark.requirement("GOV-1")

PRIMARY, OTHER = "https://idp.example", "https://idp-b.example"
issuers = st.sampled_from([PRIMARY, OTHER, "urn:idp"])
# Names that try to look like the qualified name of another subject.
names = st.one_of(
    st.text(min_size=1, max_size=8),
    st.builds(
        "{}{} {}".format,
        st.sampled_from(["issuer=", "ISSUER=", "\uff49ssuer=", "agent=", "issuer= "]),
        issuers,
        st.sampled_from(["ann", "issuer=x y"]),
    ),
)


@given(issuers, names, issuers, names)
def test_two_subjects_never_have_the_same_text(issuer: str, name: str, other_issuer: str, other_name: str) -> None:
    subject, other = build_subject(issuer, name, PRIMARY), build_subject(other_issuer, other_name, PRIMARY)
    assert (subject == other) == ((issuer, name) == (other_issuer, other_name))
    if issuer != other_issuer:
        assert normalize_person(subject) != normalize_person(other)


@given(issuers, names)
def test_a_stored_subject_leads_back_to_its_issuer_and_name(issuer: str, name: str) -> None:
    stored_issuer, stored_name = parse_subject(build_subject(issuer, name, PRIMARY))
    assert (stored_issuer or PRIMARY, stored_name) == (issuer, name)


def test_subjects_of_the_primary_issuer_stay_as_they_were() -> None:
    assert build_subject(PRIMARY, "ann", PRIMARY) == "ann"
    assert build_subject(OTHER, "ann", PRIMARY) == qualify_subject(OTHER, "ann") == f"issuer={OTHER} ann"


def test_no_name_is_stored_like_a_person_who_was_erased() -> None:
    for name in ("erased=01a1", "ERASED=01a1", "\uff45rased=01a1"):
        assert build_subject(PRIMARY, name, PRIMARY) == qualify_subject(PRIMARY, name)
