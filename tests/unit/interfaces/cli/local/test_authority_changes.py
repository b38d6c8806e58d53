"""Test how policies and settings that changed are compared and shown."""

from deputize.core.settings import Settings
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.interfaces.cli.local.edit_loop.authority_changes import compare_settings, list_policy_documents


def test_settings_are_compared_by_key_and_secrets_are_not_shown() -> None:
    old = Settings.model_validate({"database": {"url": "postgresql://a:secret-one@h/d"}})
    new = Settings.model_validate({"database": {"url": "postgresql://a:secret-two@h/d"}, "server": {"port": 8123}})
    changes = {each.key: (each.old, each.new) for each in compare_settings(old, new)}
    assert changes == {"database.url": ("(secret)", "(secret)"), "server.port": (str(old.server.port), "8123")}
    assert {each.key for each in compare_settings(old, new) if each.has_authority} == {"database.url"}
    assert list(compare_settings(old, old)) == []


def test_tables_with_names_are_compared_each_by_itself_unless_their_order_changes() -> None:
    def load(*names: str, **changes: object) -> Settings:
        tables = [{"name": each, "url": f"https://{each}.example/mcp"} for each in names]
        return Settings.model_validate({"servers": [tables[0] | changes, *tables[1:]]})

    def compare(old: Settings, new: Settings) -> list[tuple[str, str, str]]:
        return [(each.key, each.old, each.new) for each in compare_settings(old, new)]

    old = load("crm", "wiki")
    assert compare(old, load("crm", "wiki", "notes")) == [
        ("servers.notes", "none", '{"name": "notes", "url": "https://notes.example/mcp", "sandbox": false}')
    ]
    assert compare(old, load("crm", reads=["read"])) == [
        ("servers.crm.reads", "[]", '["read"]'),
        ("servers.wiki", '{"name": "wiki", "url": "https://wiki.example/mcp", "sandbox": false}', "none"),
    ]
    assert [key for key, _, _ in compare(old, load("wiki", "crm"))] == ["servers"]
    assert [key for key, _, _ in compare(old, load("notes", "crm", "wiki"))] == ["servers"]


def test_policy_files_that_differ_are_listed_with_both_contents() -> None:
    old = [PolicyFile(path="a.cedar", text="one"), PolicyFile(path="b.cedar", text="same")]
    new = [PolicyFile(path="b.cedar", text="same"), PolicyFile(path="c.cedar", text="three")]
    assert list_policy_documents(old, new) == [("a.cedar", b"one", None), ("c.cedar", None, b"three")]
