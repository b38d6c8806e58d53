"""Sealing and keys, without a database: boxes open only as what they were, and key files are private."""

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.errors import UnsealFailed
from deputize.store.keys import KEY_BYTES, KeySet, MasterKey
from deputize.store.private_file import write_once

CALL = "01890000-0000-7000-8000-000000000001"
OTHER_CALL = "01890000-0000-7000-8000-000000000002"


def make_keys(tenant: str = "acme") -> KeySet:
    return KeySet.from_data_keys(tenant, {1: b"\x01" * KEY_BYTES}, Clock())


@pytest.mark.requirement("GOV-6")
@given(data=st.binary(max_size=4000) | st.binary(max_size=50).map(lambda part: part * 200))
def test_what_is_sealed_opens_to_the_same_bytes_and_shows_none_of_them(data: bytes) -> None:
    box = make_keys().seal(CALL, "outcome", data)
    assert make_keys().unseal(CALL, "outcome", box) == data
    if len(data) > 8:
        assert data not in box


@pytest.mark.requirement("GOV-6")
def test_ciphertext_decrypts_only_for_its_tenant_call_and_kind() -> None:
    box = make_keys().seal(CALL, "input", b"secret")
    for holder, call_id, kind in (
        (make_keys("other"), CALL, "input"),
        (make_keys(), OTHER_CALL, "input"),
        (make_keys(), CALL, "outcome"),
        (KeySet.from_data_keys("acme", {1: b"\x02" * KEY_BYTES}, Clock()), CALL, "input"),
    ):
        with pytest.raises(UnsealFailed):
            holder.unseal(call_id, kind, box)


@given(place=st.integers(min_value=0), flip=st.integers(min_value=1, max_value=255))
def test_ciphertext_with_any_bit_changed_does_not_decrypt(place: int, flip: int) -> None:
    box = bytearray(make_keys().seal(CALL, "input", b"secret" * 400))
    box[place % len(box)] ^= flip
    with pytest.raises(UnsealFailed):
        make_keys().unseal(CALL, "input", bytes(box))


@given(box=st.binary(max_size=60))
def test_bytes_that_are_not_ciphertext_do_not_decrypt(box: bytes) -> None:
    with pytest.raises(UnsealFailed):
        make_keys().unseal(CALL, "input", box)


def test_equal_values_make_different_ciphertext() -> None:
    assert make_keys().seal(CALL, "input", b"same") != make_keys().seal(CALL, "input", b"same")


def test_large_repetitive_values_are_kept_small() -> None:
    assert len(make_keys().seal(CALL, "outcome", b'{"a": 1}' * 1000)) < 1000


def test_after_a_rotation_old_ciphertext_decrypts_and_fingerprints_stay() -> None:
    old = make_keys()
    new = KeySet.from_data_keys("acme", {1: b"\x01" * KEY_BYTES, 2: b"\x02" * KEY_BYTES}, Clock())
    assert new.unseal(CALL, "input", old.seal(CALL, "input", b"x")) == b"x"
    assert new.fingerprint_key == old.fingerprint_key
    with pytest.raises(UnsealFailed):
        old.unseal(CALL, "input", new.seal(CALL, "input", b"x"))


def test_keys_do_not_show_themselves_when_printed() -> None:
    material = b"\x41" * KEY_BYTES
    shown = repr(KeySet.from_data_keys("acme", {1: material}, Clock())) + repr(MasterKey(material=material))
    assert "AAAA" not in shown
    assert "fingerprint" not in shown


def test_a_wrapped_key_opens_only_for_its_tenant_and_version() -> None:
    master = MasterKey(material=b"\x01" * KEY_BYTES)
    wrapped = master.wrap("acme", 1, b"\x07" * KEY_BYTES, Clock())
    assert master.unwrap("acme", 1, wrapped) == b"\x07" * KEY_BYTES
    for tenant, version, opener in (
        ("other", 1, master),
        ("acme", 2, master),
        ("acme", 1, MasterKey(material=b"\x02" * KEY_BYTES)),
    ):
        with pytest.raises(UnsealFailed):
            opener.unwrap(tenant, version, wrapped)
    for damaged in (b"", b"\x09" + wrapped[1:], wrapped[:10]):
        with pytest.raises(UnsealFailed):
            master.unwrap("acme", 1, damaged)


def test_the_master_key_is_made_once_and_privately(tmp_path: Path) -> None:
    path = tmp_path / "new" / "master.key"
    made = MasterKey.read_or_create(path, Clock())
    assert MasterKey.read_or_create(path, Clock()) == made == MasterKey.read(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [child.name for child in path.parent.iterdir()] == ["master.key"]


def test_mistakes_with_the_master_key_are_one_sentence_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "master.key"
    with pytest.raises(ConfigError, match=r"missing.*openssl rand"):
        MasterKey.read(path)
    write_once(path, b"short")
    with pytest.raises(ConfigError, match="5 bytes instead of 32"):
        MasterKey.read(path)
    path.chmod(0o604)
    with pytest.raises(ConfigError, match="chmod 600"):
        MasterKey.read(path)
    with pytest.raises(ConfigError, match="not a file"):
        MasterKey.read(tmp_path)


def test_a_key_mounted_readable_for_its_group_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "master.key"
    write_once(path, b"\x01" * KEY_BYTES)
    path.chmod(0o440)
    assert len(MasterKey.read(path).material) == KEY_BYTES
