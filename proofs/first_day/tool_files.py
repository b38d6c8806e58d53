"""Three tools that a newcomer writes, seven ways to break each of them, and what the message must name."""

from collections.abc import Iterator
from dataclasses import dataclass

TOOL_FILE = '''"""Three tools."""

from pathlib import Path

from deputize import tool


@tool(effects="read", examples=[{"text": "a b"}])
def count_words(text: str) -> int:
    """Count the words of a text.

    Args:
        text: The text.
    """
    return len(text.split())


@tool(effects="read", examples=[{"price": 10}])
def add_tax(price: int) -> int:
    """Add a tax to a price.

    Args:
        price: The price in cents.
    """
    if price == 13:
        raise RuntimeError("no tax for this price")
    return price + price // 5


@tool(
    effects="write", scopes=["notes:write"], resources=["create files"], undo="hello.forget",
    examples=[{"line": "hello"}],
)
def append_line(line: str) -> int:
    """Append a line to a file.

    Args:
        line: The line.
    """
    with Path("lines.txt").open("a") as file:
        return file.write(line)
'''
_SIGNATURES = {
    "count_words": ("text", "str", '"read"'),
    "add_tax": ("price", "int", '"read"'),
    "append_line": ("line", "str", '"write"'),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenFile:
    """A file with one mistake, and the words by which its author finds it."""

    title: str
    text: str
    words: tuple[str, ...]


def list_broken_files() -> Iterator[BrokenFile]:
    """Break each tool in seven ways."""
    for name, (parameter, kind, effects) in _SIGNATURES.items():
        signature = f"def {name}({parameter}: {kind}) -> int:"
        start, _, rest = TOOL_FILE.partition(signature)
        head, _, decorator = start.rpartition("@tool")
        line = str(start.count("\n") + 1)
        changes = {
            "no colon": (start + signature[:-1] + rest, ("mine.py", f":{line}", "SyntaxError")),
            "no type": (start + f"def {name}({parameter}) -> int:" + rest, (name, parameter, "has no type")),
            "no return type": (start + signature.removesuffix(" -> int:") + ":" + rest, (name, "no return type")),
            "no type at all": (
                start + f"def {name}({parameter}):" + rest,
                (name, parameter, "has no type", "no return type"),
            ),
            "a type that is no JSON": (
                start + f"def {name}({parameter}: type(open)) -> int:" + rest,
                (name, f"the argument {parameter}", "JSON"),
            ),
            "unknown effects": (
                head + "@tool" + decorator.replace(effects, '"erases"') + signature + rest,
                (name, "effects", "'read', 'write' or 'destructive'"),
            ),
            "example of another parameter": (
                head + "@tool" + decorator.replace(f'"{parameter}"', '"other"') + signature + rest,
                (name, "example", "other"),
            ),
        }
        for title, (text, words) in changes.items():
            yield BrokenFile(title=f"{name} with {title}", text=text, words=words)
