"""Which documents an import may read besides the one that a person named."""

from pathlib import Path

import orjson
import pytest

from deputize.catalog.importers.openapi.document import parse_document
from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.referenced_documents import _is_below, include_allowed_references

pytestmark = pytest.mark.requirement("EXE-1")


@pytest.mark.parametrize(
    ("url", "root", "expected"),
    [
        ("https://a.example/api/x.json", "https://a.example/api/", True),
        ("https://a.example/api/x.json", "https://a.example/api", True),
        ("https://a.example/api/x.json", "https://a.example/api/x.json", True),
        ("https://a.example/x.json", "https://a.example", True),
        ("https://a.example/apis/x.json", "https://a.example/api", False),
        ("http://a.example/api/x.json", "https://a.example/api", False),
        ("https://a.example:8443/api/x.json", "https://a.example/api", False),
        ("https://b.example/api/x.json", "https://a.example/api", False),
        ("https://a.example@b.example/api/x.json", "https://a.example/api", False),
        ("https://a.example/api/../x.json", "https://a.example/api", False),
        ("https://a.example/api/%2e%2e/x.json", "https://a.example/api", False),
        ("https://a.example/api/%252e%252e/x.json", "https://a.example/api", False),
        ("https://a.example/api/..\\x.json", "https://a.example/api", False),
        ("https://a.example/api/x.json?to=b", "https://a.example/api", False),
        ("file:///etc/passwd", "file:///srv/api", False),
    ],
)  # fmt: skip
def test_only_what_is_below_an_allowed_place_is_read(url: str, root: str, expected: bool) -> None:
    assert _is_below(url, root) is expected


def write_document(folder: Path, reference: str) -> str:
    source = folder / "openapi.json"
    source.write_bytes(orjson.dumps({"openapi": "3.0.0", "paths": {"/a": {"$ref": reference}}}))
    return str(source)


def test_files_are_read_in_allowed_folders_and_links_do_not_lead_out_of_them(tmp_path: Path) -> None:
    shared, secret = tmp_path / "shared", tmp_path / "secret.json"
    shared.mkdir()
    (shared / "a.json").write_text('{"get": {}}')
    secret.write_text('{"get": {}}')
    (shared / "link.json").symlink_to(secret)

    def include(reference: str, *allowed: str) -> bool:
        source = write_document(tmp_path, reference)
        document = include_allowed_references(parse_document(Path(source).read_bytes()), source, allowed, tmp_path)
        return "x-documents" in document.content

    assert include("shared/a.json", str(shared))
    assert include("shared/a.json", str(shared / "a.json"))
    assert include("shared/a.json", "shared")
    assert not include("shared/a.json")
    assert not include("secret.json", str(shared))
    assert not include("shared/../secret.json", str(shared))
    with pytest.raises(ConfigError, match="not a file in a folder"):
        include("shared/link.json", str(shared))
    with pytest.raises(ConfigError, match="cannot be read"):
        include("shared/none.json", str(shared))
    with pytest.raises(ConfigError, match="cannot be read"):
        include("shared/a.json", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="not a URL"):
        include("shared/a.json", "https://a.example/?x=1")


def test_a_document_from_the_web_reads_no_files(tmp_path: Path) -> None:
    document = parse_document(b'{"openapi": "3.0.0"}')
    with pytest.raises(ConfigError, match="comes from a URL"):
        include_allowed_references(document, "https://a.example/openapi.json", [str(tmp_path)], tmp_path)
