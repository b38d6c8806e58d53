"""Check the words of the tree: names an outsider understands, and nothing that must not be published.

Four rules, each with the reason beside it when it fails:

- banned text: a package registry's address, a path of one machine, unfinished work without an issue number;
- retired names: words of an earlier, private vocabulary, with the word to use instead;
- one class name, one class: no class name stands twice in `src`;
- no bare participles: no function or variable is called `told`, `waiting` or `loaded`, unless `words.toml` beside this
  file allows it and says why. Constants and members of enums are values, not names of this kind.
- a docstring of a module or function in `src` opens with an imperative, not with `What`, `Whether` or `The`.

In tests, proofs and checks, locals are read within a screen of the call they hold, and only docstrings are prose.

`words.toml` holds the retired names and the exceptions. An exception that nothing needs any more fails too.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BANNED = {
    "a package registry's address": re.compile(
        r"py[p]i\.(org|python)|python[h]osted\.org|npm[j]s\.(org|com)|yarn[p]kg\.com|-index[-]url",
        re.IGNORECASE,
    ),
    "a path of one machine": re.compile(r"(?<![\w.*-])/wor[k]/"),
    "unfinished work without an issue, write it as (#12)": re.compile(r"\b(TOD[O]|FIXM[E]|XX[X])\b(?!\(#\d+\))"),
}
# Past participles that do not end in -ed.
# fmt: off
_IRREGULAR = frozenset((
    "begun", "borne", "brought", "built", "caught", "chosen", "done", "drawn", "fed", "felt", "found", "given",
    "gone", "grown", "heard", "held", "hidden", "kept", "known", "laid", "led", "lent", "lost", "made", "meant",
    "met", "paid", "said", "seen", "sent", "shown", "sold", "spent", "spoken", "stood", "taken", "taught", "thrown",
    "told", "understood", "won", "worn", "written",
))
# fmt: on
_PARTICIPLE = re.compile(r"[a-z]{2,}(?:ed|ing)")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# First words of a docstring that describes instead of saying what to do.
# fmt: off
_NO_IMPERATIVE = frozenset((
    "A", "All", "An", "As", "At", "Both", "By", "Each", "Either", "Every", "Everything", "For", "From", "How", "If",
    "In", "It", "Its", "Like", "No", "Nobody", "None", "Nothing", "Of", "On", "One", "Only", "Others", "Out",
    "Over", "Same", "Somebody", "Something", "Such", "That", "The", "These", "They", "This", "Those", "To", "What",
    "Whatever", "When", "Where", "Whether", "Which", "Who", "Whoever", "Whom", "Whose", "Why", "With", "Without",
))
# fmt: on


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """The retired names and the exceptions, as `words.toml` lists them."""

    retired_names: Mapping[str, str]
    retired_phrases: Mapping[str, str]
    participles: Mapping[str, str]
    exceptions: Mapping[str, Mapping[str, str]]
    applied: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def load(cls, path: Path) -> "Rules":
        """Read the rules from a TOML file."""
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return cls(
            retired_names=data["retired_names"],
            retired_phrases=data["retired_phrases"],
            participles=data["participles"],
            exceptions=data.get("exceptions", {}),
        )

    def is_exception(self, path: str, word: str) -> bool:
        """Tell whether a file, or a folder above it, may use a word; remember that the exception was needed."""
        for place, words in self.exceptions.items():
            if (path == place or path.startswith(place.rstrip("/") + "/")) and word in words:
                self.applied.add((place, word))
                return True
        return False

    def list_unused(self) -> Iterator[str]:
        """List exceptions that nothing needed."""
        for place, words in self.exceptions.items():
            for word in words:
                if (place, word) not in self.applied:
                    yield f"checks/words.toml: exception {word!r} for {place} is not needed; remove it"


def list_tracked_files(root: Path) -> list[Path]:
    """List what git would publish from a checkout."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True)
    return [root / name for name in listing.stdout.split("\0") if name]


def find_banned_text(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, what it is, and the words themselves."""
    for number, line in enumerate(text.splitlines(), start=1):
        for what, pattern in BANNED.items():
            if match := pattern.search(line):
                yield number, what, match[0]


def split_words(name: str) -> list[str]:
    """Split an identifier into its lower-case words."""
    return [word.lower() for word in _WORD.findall(name)]


def is_participle(name: str) -> bool:
    """Tell whether a whole name is one participle."""
    word = name.strip("_").lower()
    return word in _IRREGULAR or _PARTICIPLE.fullmatch(word) is not None


def list_bindings(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the name and the kind of everything a module defines."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef():
                yield node.lineno, node.name, "class"
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.lineno, node.name, "function"
            case ast.arg():
                yield node.lineno, node.arg, "variable"
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id, "variable"
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr, "variable"
            case _:
                continue


def find_bad_names(path: str, tree: ast.AST, rules: Rules) -> Iterator[str]:
    """Find retired names and bare participles among what a module defines."""
    for line, name, kind in list_bindings(tree):
        if kind == "variable" and not path.startswith(("src/", "docs/")):
            continue
        for word in split_words(name):
            if (instead := rules.retired_names.get(word)) and not rules.is_exception(path, word):
                yield f"{path}:{line}: {kind} {name}: {word!r} is retired; use {instead}"
        bare_name = name.strip("_").lower()
        if kind == "class" or name.isupper() or not is_participle(name) or bare_name in rules.participles:
            continue
        if not rules.is_exception(path, bare_name):
            yield f"{path}:{line}: {kind} {name} is a bare participle; name it after what it does or holds"


def find_bad_docstrings(path: str, tree: ast.AST) -> Iterator[str]:
    """Find docstrings of modules and functions whose first word is no verb."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            first = re.match(r"[\w'-]+", text or "")
            if first and first[0] in _NO_IMPERATIVE and not _is_property(node):
                line = getattr(node, "lineno", 1)
                yield f"{path}:{line}: the docstring opens with {first[0]!r}; open with an imperative: what it does"


def _is_property(node: ast.AST) -> bool:
    """Tell whether a node defines a property, whose docstring describes a value."""
    decorators = getattr(node, "decorator_list", ())
    return any("property" in ast.unparse(each) for each in decorators)


def list_docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each docstring of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield node.body[0].lineno, text


def find_retired_phrases(path: str, text: str, rules: Rules, *, first_line: int = 1) -> Iterator[str]:
    """Find words of the earlier vocabulary in prose, and in the strings and comments of code."""
    for phrase, instead in rules.retired_phrases.items():
        for match in re.finditer(rf"(?<![\w./`\"'-]){phrase}(?![\w/`\"'-])", text, re.IGNORECASE):
            if rules.is_exception(path, phrase):
                break
            line = text.count("\n", 0, match.start()) + first_line
            yield f"{path}:{line}: {match[0]!r} is retired; use {instead}"


def find_repeated_classes(modules: Mapping[str, ast.AST]) -> Iterator[str]:
    """Find class names that stand more than once."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    for name, where in places.items():
        if len(where) > 1:
            yield f"{where[1]}: class {name} stands already in {where[0]}; a name means one thing"


def check(root: Path, paths: Iterable[Path], rules: Rules) -> Iterator[str]:
    """Check files of a checkout by all rules."""
    modules: dict[str, ast.AST] = {}
    for path in paths:
        name = path.relative_to(root).as_posix()
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
            continue  # an image or another binary has no words
        for number, what, words in find_banned_text(text):
            yield f"{name}:{number}: {what}: {words!r}"
        # Records of decisions and of releases keep the words of their day; results keep their keys.
        if name.startswith(("docs/decisions/", "proofs/results/", "checks/words")) or name == "CHANGELOG.md":
            continue
        if path.suffix in (".md", ".sql", ".html", ".toml") or (path.suffix == ".py" and name.startswith("src/")):
            yield from find_retired_phrases(name, text, rules)
        if path.suffix == ".py":
            tree = ast.parse(text, filename=name)
            if not name.startswith("src/"):
                for line, docstring in list_docstrings(tree):
                    yield from find_retired_phrases(name, docstring, rules, first_line=line)
            yield from find_bad_names(name, tree, rules)
            if name.startswith("src/"):
                modules[name] = tree
                yield from find_bad_docstrings(name, tree)
    yield from find_repeated_classes(modules)
    yield from rules.list_unused()


def main() -> int:
    """Run the check over the tracked files of this checkout."""
    paths = list_tracked_files(ROOT)
    failures = list(check(ROOT, paths, Rules.load(Path(__file__).with_name("words.toml"))))
    for failure in failures:
        print(f"words: {failure}", file=sys.stderr)
    if not failures:
        print(f"words: {len(paths)} tracked files are clean")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
