"""Who may be told: what the settings name, if it goes to people, and without a word about where."""

import pytest
from pydantic import SecretStr

from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.settings import ApprovalSettings, NotificationTarget, Settings, WebhookSettings
from deputize.operations.approvals.notifications.receivers import APPRISE_SCHEMES, Receiver, Receivers
from deputize.store.keys import KeySet

pytestmark = pytest.mark.requirement("GOV-3")


def _make_settings(*notify: tuple[str, str, str]) -> Settings:
    named = tuple(
        NotificationTarget(group=group, url=SecretStr(url), tenants=tenants) for group, url, tenants in notify
    )
    return Settings(approvals=ApprovalSettings(notify=named), webhooks=WebhookSettings(hosts=("pager.internal",)))


def test_a_group_of_a_tenant_has_the_receivers_named_for_both() -> None:
    receivers = Receivers(
        _make_settings(
            ("oncall", "https://a.example/1", "*"),
            ("oncall", "https://a.example/2", "acme-*"),
            ("leads", "https://a.example/3", "*"),
            ("oncall", "http://pager.internal/4", "zeta"),
        )
    )
    found = [each.url.get_secret_value()[-1] for each in receivers.find_receivers("acme-1", "oncall")]
    assert found == ["1", "2"]
    assert [each.url.get_secret_value()[-1] for each in receivers.find_receivers("zeta", "oncall")] == ["1", "4"]
    assert receivers.find_receivers("acme-1", "nobody") == []
    assert receivers.apprise_sender is None


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://a.example/s3cret", "must use https"),
        ("https://10.0.0.8/s3cret", "not a public address"),
        ("https://me:s3cret@a.example/", "https address without"),
        ("dbus://s3cret", "unsupported scheme"),
        ("syslog://s3cret", "unsupported scheme"),
        ("file:///s3cret", "unsupported scheme"),
        ("s3cret", "unsupported scheme"),
        ("slack://s3cret", "cannot parse"),
    ],
)
def test_an_unusable_address_is_a_config_error_that_does_not_show_it(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as told:
        Receivers(_make_settings(("oncall", url, "*")))
    assert "oncall" in str(told.value)
    assert "s3cret" not in str(told.value)


def test_an_apprise_url_is_read_without_asking_anybody() -> None:
    receivers = Receivers(_make_settings(("oncall", "json://user:s3cret@a.example/", "*")))
    assert receivers.apprise_sender is not None
    assert "s3cret" not in repr(receivers.find_receivers("acme", "oncall"))


def test_nothing_that_acts_on_this_machine_is_let_through() -> None:
    assert not APPRISE_SCHEMES & {
        "apprise", "blink1", "dbus", "file", "gio", "glib", "gnome", "growl", "kde", "macosx", "qt", "syslog",
        "windows",
    }  # fmt: skip


def test_a_receiver_id_can_only_be_made_by_its_tenant() -> None:
    receiver = Receiver(group="oncall", tenants="*", url=SecretStr("https://a.example/s3cret"))
    other = Receiver(group="oncall", tenants="*", url=SecretStr("https://a.example/s3cret2"))
    acme, zeta = (KeySet.from_data_keys(tenant, {1: tenant.encode() * 8}, Clock()) for tenant in ("acme", "zeta"))
    assert receiver.compute_fingerprint(acme) == receiver.compute_fingerprint(acme)
    assert (
        len({receiver.compute_fingerprint(acme), receiver.compute_fingerprint(zeta), other.compute_fingerprint(acme)})
        == 3
    )
