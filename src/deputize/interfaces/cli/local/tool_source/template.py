"""Write the file of a new tool: one that can be called at once, and passes `deputize tool check`."""

import json
import keyword
import re
from pathlib import Path
from typing import Final

from deputize.core.config_error import ConfigError

_NAME = re.compile(r"([a-z][a-z0-9]*(?:_[a-z0-9]+)*)\.([a-z][a-z0-9]*(?:_[a-z0-9]+)*)")
_MAX_NAME_LENGTH: Final = 60
_MAX_DESCRIPTION_LENGTH: Final = 400

_HEAD = '''"""Define the tool {namespace}.{name}."""

from deputize import {imports}

'''
_READ = '''
@tool(effects="read", examples=[{{"item": "apple"}}])
def {name}(item: str) -> str:
    """{description}

    Args:
        item: What it is about.
    """
    return f"{name} of {{item}} is not written yet"
'''
# Each of the two is the other's reverse.
_WRITE = '''
@tool(
    effects="write",
    resources=["update {namespace}/{{item}}"],
    undo="{namespace}.undo_{name}",
    scopes=["{namespace}:write"],
    examples=[{{"item": "apple"}}],
)
def {name}(item: str) -> str:
    """{description}

    Args:
        item: What is changed.
    """
    return f"{name} of {{item}} is not written yet"


@tool(
    effects="write",
    resources=["update {namespace}/{{item}}"],
    undo="{namespace}.{name}",
    scopes=["{namespace}:write"],
    examples=[{{"item": "apple"}}],
)
def undo_{name}(item: str) -> str:
    """Take back what {name} did.

    Args:
        item: What is changed back.
    """
    return f"undo_{name} of {{item}} is not written yet"
'''
_DESTRUCTIVE = '''
def preview_{name}(item: str) -> Preview:
    """Show the approver what a call would change. It must change nothing."""
    return Preview(changes=[{{"resource": "{namespace}", "op": "delete", "scope": item, "count": 1}}])


@tool(
    effects="destructive",
    resources=["delete {namespace}/{{item}}"],
    scopes=["{namespace}:write"],
    preview=preview_{name},
    examples=[{{"item": "apple"}}],
)
def {name}(item: str) -> str:
    """{description}

    Args:
        item: What is deleted.
    """
    return f"{name} of {{item}} is not written yet"
'''
_TEMPLATES: Final = {"read": _READ, "write": _WRITE, "destructive": _DESTRUCTIVE}


def parse_tool_name(name: str) -> tuple[str, str]:
    """Split `stock.count` into namespace and name; raise a `ConfigError` that says how a name is written."""
    match = _NAME.fullmatch(name)
    if match is None or len(name) > _MAX_NAME_LENGTH or any(map(keyword.iskeyword, match.groups())):
        raise ConfigError(
            f"{name} is not the name of a tool: write namespace.name in lower-case words joined by underscores, for "
            f"example stock.count, with at most {_MAX_NAME_LENGTH} characters and no Python keyword."
        )
    return match[1], match[2]


def write_tool_file(folder: Path, name: str, effects: str, description: str) -> Path:
    """Write `tools/NAMESPACE.py` of a project; raise a `ConfigError` if it exists."""
    namespace, function = parse_tool_name(name)
    text = _HEAD + _TEMPLATES[effects]
    imports = "Preview, tool" if effects == "destructive" else "tool"
    file = folder / "tools" / f"{namespace}.py"
    source = text.format(
        namespace=namespace, name=function, imports=imports, description=_quote_description(description)
    )
    try:
        file.parent.mkdir(exist_ok=True)
        with file.open("x", encoding="utf-8") as stream:
            stream.write(source)
    except FileExistsError:
        raise ConfigError(
            f"{file.relative_to(folder)} exists, and a file is never overwritten: add the function {function} to it, "
            "or choose another namespace."
        ) from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be written ({error.strerror}): check the folder.") from error
    return file


def _quote_description(text: str) -> str:
    """Write a sentence as the inside of a docstring, whatever it contains."""
    sentence = " ".join(text.split())[:_MAX_DESCRIPTION_LENGTH]
    sentence = sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
    return json.dumps(sentence, ensure_ascii=False)[1:-1] if {"\\", '"'} & set(sentence) else sentence
