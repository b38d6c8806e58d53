"""Add missing docstring lines and examples to a Python file. Everything else stays byte for byte as it is.

Effects and scopes are never written: only the author knows them. The edited file is compared with the old one by its
syntax tree, and is refused if anything but docstrings and `examples` differs.
"""

import ast
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deputize.core.contract.publication import PLACEHOLDER
from deputize.interfaces.cli.local.tool_source.registration_advice import SourceGaps
from deputize.store.private_file import replace_file

_ARGUMENTS = re.compile(r"\s*(?:Args|Arguments|Parameters):\s*")
_QUOTED = re.compile(r"[rRuU]?(\"\"\"|''')")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_INDENT = "    "
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class SourceNotEdited(Exception):
    """The source could not be edited safely; the message says why."""


@dataclass(frozen=True, slots=True)
class _Insertion:
    """A text to insert before a column of a line, both counted from zero, the column in characters."""

    line: int
    column: int
    text: str


def add_missing_lines(source: bytes, gaps: Iterable[SourceGaps]) -> bytes:
    """Return the source with the missing lines of each function; raise `SourceNotEdited` if that is not safe."""
    try:
        text = source.decode("utf-8")
        tree = ast.parse(source)
    except (UnicodeDecodeError, SyntaxError, ValueError) as error:
        raise SourceNotEdited(f"the file is not valid Python in UTF-8 ({error})") from error
    newline = "\r\n" if "\r\n" in text else "\n"
    # As Python counts them; str.splitlines splits at more characters.
    lines = _LINE.findall(text)
    insertions: list[_Insertion] = []
    for each in gaps:
        node = _find_function(tree, each)
        if each.argument_names or not each.has_docstring:
            insertions.append(_describe_arguments(lines, node, each))
        if each.example_names and (insertion := _add_example(lines, node, each)) is not None:
            insertions.append(insertion)
    for insertion in sorted(insertions, key=lambda each: (each.line, each.column), reverse=True):
        line = lines[insertion.line]
        text = insertion.text.replace("\n", newline)
        lines[insertion.line] = line[: insertion.column] + text + line[insertion.column :]
    edited_source = "".join(lines).encode("utf-8")
    _require_same_code(tree, edited_source)
    return edited_source


def edit_tool_file(file: Path, gaps: Sequence[SourceGaps]) -> bool:
    """Write the missing lines into a file, atomically and with its mode; return whether anything was written."""
    try:
        source = file.read_bytes()
        edited_source = add_missing_lines(source, gaps)
        if edited_source == source:
            return False
        if file.read_bytes() != source:
            raise SourceNotEdited("the file changed meanwhile; run the command again")
        replace_file(file, edited_source, mode=stat.S_IMODE(file.stat().st_mode))
    except OSError as error:
        raise SourceNotEdited(f"the file cannot be read or written ({error.strerror})") from error
    return True


def _find_function(tree: ast.Module, gaps: SourceGaps) -> FunctionNode:
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode) and node.name == gaps.function:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first == gaps.line:
                return node
    raise SourceNotEdited(f"the function {gaps.function} is not where it was loaded from")


def _describe_arguments(lines: list[str], node: FunctionNode, gaps: SourceGaps) -> _Insertion:
    body = node.body[0]
    first_line = min([body.lineno, *(each.lineno for each in getattr(body, "decorator_list", ()))]) - 1
    if body.lineno == node.lineno or lines[first_line][: body.col_offset].strip():
        raise SourceNotEdited(f"{gaps.function} is written on one line; put its body on a line of its own")
    indent = lines[first_line][: len(lines[first_line]) - len(lines[first_line].lstrip())]
    section = "".join(f"{indent}{_INDENT}{line}\n" for line in gaps.argument_lines)
    if ast.get_docstring(node, clean=False) is None:
        head = f'{indent}"""{PLACEHOLDER}: say what it does.'
        block = f'\n\n{indent}Args:\n{section}{indent}"""\n' if section else '"""\n'
        return _Insertion(first_line, 0, head + block)
    if not section:
        raise SourceNotEdited(f"the docstring of {gaps.function} is too short; write a sentence that says what it does")
    return _extend_docstring(lines, node, gaps, indent, section)


def _extend_docstring(lines: list[str], node: FunctionNode, gaps: SourceGaps, indent: str, section: str) -> _Insertion:
    statement = node.body[0]
    start, end = statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1
    end_text = lines[end].encode()[: statement.end_col_offset].decode()
    quotes = _QUOTED.match(lines[start].lstrip())
    if quotes is None or not end_text.endswith(quotes[1]):
        raise SourceNotEdited(f'the docstring of {gaps.function} is not written with three quotes; write it with """')
    quote_column = len(end_text) - len(quotes[1])
    is_closing_alone = end > start and not end_text[:quote_column].strip()
    header = next((line for line in range(start, end + 1) if _ARGUMENTS.fullmatch(lines[line])), None)
    if header is None:
        if is_closing_alone:
            return _Insertion(end, 0, f"\n{indent}Args:\n{section}")
        return _Insertion(end, quote_column, f"\n\n{indent}Args:\n{section}{indent}")
    return _extend_arguments(lines, gaps, header, end, None if is_closing_alone else quote_column)


def _extend_arguments(
    lines: list[str], gaps: SourceGaps, header: int, end: int, quote_column: int | None
) -> _Insertion:
    """Insert after the last entry of `Args:`; `quote_column` is that of quotes with text before them."""
    depth = _measure_indent(lines[header])
    last, entry_indent = header, depth + len(_INDENT)
    for number in range(header + 1, end + (quote_column is not None)):
        line = lines[number]
        if line.strip():
            if _measure_indent(line) <= depth:
                break
            entry_indent = _measure_indent(line) if last == header else entry_indent
            last = number
    entries = "".join(f"{' ' * entry_indent}{line}\n" for line in gaps.argument_lines)
    if last == end and quote_column is not None:
        return _Insertion(end, quote_column, f"\n{entries}{' ' * depth}")
    return _Insertion(last + 1, 0, entries)


def _measure_indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _add_example(lines: list[str], node: FunctionNode, gaps: SourceGaps) -> _Insertion | None:
    """Insert `examples` after the last argument of `@tool`; None if the decorator has examples already."""
    decorator = next((each for each in node.decorator_list if _is_tool(each)), None)
    if decorator is None:
        return None
    if not isinstance(decorator, ast.Call):
        return _insert_at(lines, decorator, f"({gaps.example})")
    if any(each.arg in ("examples", None) for each in decorator.keywords) or decorator.args:
        return None
    if not decorator.keywords:
        return _insert_at(lines, decorator, gaps.example, before=1)
    return _insert_at(lines, decorator.keywords[-1].value, f", {gaps.example}")


def _insert_at(lines: list[str], node: ast.expr, text: str, *, before: int = 0) -> _Insertion:
    line = (node.end_lineno or node.lineno) - 1
    column = len(lines[line].encode()[: node.end_col_offset].decode()) - before
    return _Insertion(line, column, text)


def _is_tool(decorator: ast.expr) -> bool:
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    return "tool" in (getattr(name, "id", None), getattr(name, "attr", None))


def _require_same_code(tree: ast.Module, edited_source: bytes) -> None:
    """Compare the syntax trees without docstrings and examples: nothing else may have changed."""
    try:
        edited_tree = ast.parse(edited_source)
    except (SyntaxError, ValueError) as error:
        raise SourceNotEdited(f"the result would not compile ({error})") from error
    if _dump_code(tree) != _dump_code(edited_tree):
        raise SourceNotEdited("the result would change more than docstrings and examples")


def _dump_code(tree: ast.Module) -> str:
    return ast.dump(_CodeOnly().visit(ast.parse(ast.unparse(tree))))


class _CodeOnly(ast.NodeTransformer):
    """Removes docstrings of functions, and `examples` of `@tool`."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._strip(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._strip(node)

    def _strip(self, node: FunctionNode) -> ast.AST:
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        node.decorator_list = [_strip_examples(each) for each in node.decorator_list]
        return self.generic_visit(node)


def _strip_examples(decorator: ast.expr) -> ast.expr:
    if not (_is_tool(decorator) and isinstance(decorator, ast.Call)):
        return decorator
    decorator.keywords = [each for each in decorator.keywords if each.arg != "examples"]
    return decorator if decorator.keywords or decorator.args else decorator.func
