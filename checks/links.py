"""Fails when a page links to a file or heading that is not there, or is missing from the site's contents.

Pages under `docs/` are read on the site and beside the code, so their links are relative; a page nobody can
reach from `mkdocs.yml` is as good as unwritten.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+\s+(.*?)\s*$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """The pages at the top of the checkout and every page of the site."""
    return sorted(ROOT.glob("*.md")) + sorted(DOCS.rglob("*.md"))


def anchors(page: Path) -> set[str]:
    """The names a link may use after `#`, as GitHub and the site both make them."""
    titles = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def broken_links(page: Path) -> Iterator[str]:
    """Name each link of a page that leads nowhere."""
    for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue  # the world outside is not checked: it is not ours, and checks work offline
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists():
            yield f"{target} does not exist"
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            yield f"{target} names no heading there"
        elif DOCS in page.parents and DOCS not in path.parents and path != DOCS:
            yield f"{target} leaves the site: name the file in code type instead"


def unlisted() -> Iterator[str]:
    """Compare the pages with the contents in mkdocs.yml, in both directions."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    listed = set(_names(nav))
    present = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    yield from (f"docs/{name} is not in mkdocs.yml" for name in sorted(present - listed))
    yield from (f"mkdocs.yml names {name}, which does not exist" for name in sorted(listed - present))


def _names(nav: object) -> Iterator[str]:
    match nav:
        case str():
            yield nav
        case list():
            for item in nav:
                yield from _names(item)
        case dict():
            yield from _names(list(nav.values()))
        case _:
            raise TypeError(f"mkdocs.yml: the contents hold {nav!r}; only names, lists and sections belong there")


def main() -> int:
    """Run the check over this checkout."""
    found = [f"{page.relative_to(ROOT)}: {problem}" for page in pages() for problem in broken_links(page)]
    found += unlisted()
    for problem in found:
        print(f"links: {problem}", file=sys.stderr)
    if not found:
        print(f"links: {len(pages())} pages lead somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
