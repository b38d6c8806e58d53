"""Who may be told: what the settings name, if it goes to people, and without a word about where."""

import pytest
from pydantic import SecretStr

from deputize.core.clock import Clock
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Approvals, Notify, Settings, Webhooks
from deputize.lifecycle.approvals.receivers import SCHEMES, Receiver, Receivers
from deputize.store.keys import KeySet

pytestmark = pytest.mark.requirement("GOV-3")


def _settings(*notify: tuple[str, str, str]) -> Settings:
    named = tuple(Notify(group=group, url=SecretStr(url), tenants=tenants) for group, url, tenants in notify)
    return Settings(approvals=Approvals(notify=named), webhooks=Webhooks(hosts=("pager.internal",)))


def test_a_group_of_a_tenant_has_the_receivers_named_for_both() -> None:
    receivers = Receivers(
        _settings(
            ("oncall", "https://a.example/1", "*"),
            ("oncall", "https://a.example/2", "acme-*"),
            ("leads", "https://a.example/3", "*"),
            ("oncall", "http://pager.internal/4", "zeta"),
        )
    )
    found = [each.url.get_secret_value()[-1] for each in receivers.of("acme-1", "oncall")]
    assert found == ["1", "2"]
    assert [each.url.get_secret_value()[-1] for each in receivers.of("zeta", "oncall")] == ["1", "4"]
    assert receivers.of("acme-1", "nobody") == []
    assert receivers.shouting is None


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://a.example/s3cret", "https only"),
        ("https://10.0.0.8/s3cret", "not a public address"),
        ("https://me:s3cret@a.example/", "plain https"),
        ("dbus://s3cret", "a kind that is not used"),
        ("syslog://s3cret", "a kind that is not used"),
        ("file:///s3cret", "a kind that is not used"),
        ("s3cret", "a kind that is not used"),
        ("slack://s3cret", "cannot read"),
    ],
)
def test_an_address_that_cannot_be_used_is_a_mistake_told_without_it(url: str, why: str) -> None:
    with pytest.raises(Misconfigured, match=why) as told:
        Receivers(_settings(("oncall", url, "*")))
    assert "oncall" in str(told.value)
    assert "s3cret" not in str(told.value)


def test_an_apprise_url_is_read_without_asking_anybody() -> None:
    receivers = Receivers(_settings(("oncall", "json://user:s3cret@a.example/", "*")))
    assert receivers.shouting is not None
    assert "s3cret" not in repr(receivers.of("acme", "oncall"))


def test_nothing_that_acts_on_this_machine_is_let_through() -> None:
    assert not SCHEMES & {
        "apprise", "blink1", "dbus", "file", "gio", "glib", "gnome", "growl", "kde", "macosx", "qt", "syslog",
        "windows",
    }  # fmt: skip


def test_letters_name_a_receiver_by_a_mark_that_only_its_tenant_can_make() -> None:
    receiver = Receiver(group="oncall", tenants="*", url=SecretStr("https://a.example/s3cret"))
    other = Receiver(group="oncall", tenants="*", url=SecretStr("https://a.example/s3cret2"))
    acme, zeta = (KeySet.of(tenant, {1: tenant.encode() * 8}, Clock()) for tenant in ("acme", "zeta"))
    assert receiver.mark(acme) == receiver.mark(acme)
    assert len({receiver.mark(acme), receiver.mark(zeta), other.mark(acme)}) == 3
