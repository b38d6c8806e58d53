"""Fail when a page links to a file or heading that does not exist, or is missing from the site's contents.

Fail also when a docstring or a comment names a module in code type that does not exist any more.

Pages under `docs/` are read on the site and beside the code, so their links are relative. A page that is not in
`mkdocs.yml` cannot be found by readers of the site.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+\s+(.*?)\s*$", re.MULTILINE)
MODULE = re.compile(r"`((?:[a-z_]+/)*[a-z_]+\.py)`")
SOURCES = ("src", "tests", "proofs", "checks", "docs")
EXAMPLES = {"tools/hello.py"}  # files of a reader's own project
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


class _SiteLoader(yaml.SafeLoader):
    """A loader that reads the names of Python functions in mkdocs.yml as text, and imports nothing."""


_SiteLoader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, name, node: name)


def list_pages() -> list[Path]:
    """The pages at the top of the checkout and every page of the site."""
    return sorted(ROOT.glob("*.md")) + sorted(DOCS.rglob("*.md"))


def list_anchors(page: Path) -> set[str]:
    """The names a link may use after `#`, as GitHub and the site both make them."""
    titles = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def find_broken_links(page: Path) -> Iterator[str]:
    """Name each link of a page that leads nowhere."""
    for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue  # the world outside is not checked: it is not ours, and checks work offline
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists():
            yield f"{target} does not exist"
        elif anchor and path.suffix == ".md" and anchor not in list_anchors(path):
            yield f"{target} names no heading there"
        elif DOCS in page.parents and DOCS not in path.parents and path != DOCS:
            yield f"{target} leaves the site: name the file in code type instead"


def find_missing_modules(root: Path) -> Iterator[str]:
    """Name each module that prose in code mentions by the end of its path and that does not exist."""
    sources = sorted(path for folder in SOURCES for path in (root / folder).rglob("*.py"))
    modules = {f"/{path.relative_to(root).as_posix()}" for path in sources}
    for path in sources:
        for name in MODULE.findall(path.read_text(encoding="utf-8")):
            if name not in EXAMPLES and not any(module.endswith(f"/{name}") for module in modules):
                yield f"{path.relative_to(root)}: `{name}` does not exist"


def find_unlisted() -> Iterator[str]:
    """Compare the pages with the contents in mkdocs.yml, in both directions."""
    site = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=_SiteLoader)
    nav_names = set(_walk_names(site["nav"]))
    present = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    yield from (f"docs/{name} is not in mkdocs.yml" for name in sorted(present - nav_names))
    yield from (f"mkdocs.yml names {name}, which does not exist" for name in sorted(nav_names - present))


def _walk_names(nav: object) -> Iterator[str]:
    match nav:
        case str():
            yield nav
        case list():
            for item in nav:
                yield from _walk_names(item)
        case dict():
            yield from _walk_names(list(nav.values()))
        case _:
            raise TypeError(f"mkdocs.yml: the contents hold {nav!r}; only names, lists and sections belong there")


def main() -> int:
    """Run the check over this checkout."""
    problems = [f"{page.relative_to(ROOT)}: {problem}" for page in list_pages() for problem in find_broken_links(page)]
    problems += find_unlisted()
    problems += find_missing_modules(ROOT)
    for problem in problems:
        print(f"links: {problem}", file=sys.stderr)
    if not problems:
        print(f"links: {len(list_pages())} pages lead somewhere")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
