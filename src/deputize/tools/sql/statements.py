"""Admit one statement that reads, parsed by PostgreSQL's own grammar, and refuse everything that no list here names.

`reading.py` runs what is admitted. Names that stand after a dot can be functions of one argument, and types can be rows
of tables, which only the database can tell: `Statement.attributes` and `types` are those to ask it about.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pgparse

from deputize import SemanticViolation

MAX_SQL: Final = 10_000
MAX_JOINS: Final = 5
MAX_NESTING: Final = 3
MAX_SELECTS: Final = 20
CATALOG: Final = "pg_catalog"

# No effect outside of the statement, no SQL in a text that they run, nothing read but their arguments.
SAFE_FUNCTIONS: Final = frozenset(Path(__file__).with_name("safe_functions.txt").read_text().split())

# The parts of a parse tree. All others, those of later versions too, are refused.
_PARTS: Final = {
    "A_ArrayExpr", "A_Const", "A_Expr", "A_Indices", "A_Indirection", "A_Star", "Alias", "BitString", "BoolExpr",
    "Boolean", "BooleanTest", "CTECycleClause", "CTESearchClause", "CaseExpr", "CaseWhen", "CoalesceExpr",
    "CollateClause", "ColumnDef", "ColumnRef", "CommonTableExpr", "Float", "FuncCall", "GroupingFunc",
    "GroupingSet", "Integer", "JoinExpr", "JsonAggConstructor", "JsonArgument", "JsonArrayAgg",
    "JsonArrayConstructor", "JsonArrayQueryConstructor", "JsonBehavior", "JsonFuncExpr", "JsonIsPredicate",
    "JsonKeyValue", "JsonObjectAgg", "JsonObjectConstructor", "JsonOutput", "JsonParseExpr", "JsonReturning",
    "JsonScalarExpr", "JsonSerializeExpr", "JsonTable", "JsonTableColumn", "JsonTablePathSpec", "JsonValueExpr",
    "List", "MinMaxExpr", "NamedArgExpr", "NullTest", "ParamRef", "RangeFunction", "RangeSubselect",
    "RangeTableSample", "RangeVar", "ResTarget", "RowExpr", "SQLValueFunction", "SelectStmt", "SortBy", "String",
    "SubLink", "TypeCast", "TypeName", "WindowDef", "WithClause",
}  # fmt: skip
# Fields whose value the parse tree writes without its type.
_PLAIN_FIELDS: Final = {
    "alias", "arg", "boolval", "bsval", "collClause", "constructor", "context_item", "cycle_clause", "expr",
    "format", "fval", "ival", "join_using_alias", "on_empty", "on_error", "output", "over", "pathspec",
    "returning", "search_clause", "sval", "val", "value",
}  # fmt: skip
_OPERATOR_FIELDS: Final = {"A_Expr": "name", "SortBy": "useOp", "SubLink": "operName"}
_SAMPLE_METHODS: Final = frozenset({"bernoulli", "system"})
# Casts to all other reg* types read the catalogs, and so does a row of one that is filled from JSON.
_SAFE_CATALOG_TYPES: Final = frozenset({"regconfig", "regdictionary", "pg_lsn", "pg_snapshot"})
_EXPLAIN_OPTIONS: Final = frozenset({"costs", "format", "verbose"})
# Functions whose value may be longer than what they get, by a number that they get, and where that stands. The first
# multiply, the others fill up to a length.
_MULTIPLYING: Final = {"repeat": 1, "array_fill": 1}
_FILLING: Final = {"lpad": 1, "rpad": 1, "bpchar": 1, "bit": 1, "polygon": 0}
_FILLED_TYPES: Final = frozenset({"bpchar", "bit"})
_FORMAT_WIDTH: Final = re.compile(r"%(?:\d+\$)?-?(\*|\d+)")
# They return rows, and the planner guesses how many.
_ROW_FUNCTIONS: Final = frozenset(
    {
        "unnest", "generate_subscripts", "json_array_elements", "json_array_elements_text", "json_each",
        "json_each_text", "json_object_keys", "json_populate_recordset", "json_to_recordset", "jsonb_array_elements",
        "jsonb_array_elements_text", "jsonb_each", "jsonb_each_text", "jsonb_object_keys", "jsonb_path_query",
        "jsonb_path_query_tz", "jsonb_populate_recordset", "jsonb_to_recordset", "regexp_matches",
        "regexp_split_to_table", "string_to_table", "ts_debug",
    }
)  # fmt: skip
MAX_GROWTH: Final = 10_000
# They hold as much as they are given, and PostgreSQL bounds no memory but that of sorts and hashes.
_GATHERING: Final = re.compile(r".*_agg(_strict|_unique|_unique_strict)?")
_GATHERING_PARTS: Final = frozenset({"JsonArrayAgg", "JsonObjectAgg", "JsonArrayQueryConstructor"})
_MAX_CANDIDATES: Final = 50
_BEGINNING: Final = re.compile(r"\b(?:select|values|with|table)\b|\(", re.IGNORECASE)
_HINT_READ: Final = "send one SELECT, VALUES, WITH … SELECT, or EXPLAIN without ANALYZE"


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """What statements may name: tables as `schema.table` or `schema.*`, and further functions as `schema.name`."""

    tables: tuple[str, ...]
    functions: frozenset[str] = frozenset()
    builtin_functions: frozenset[str] = SAFE_FUNCTIONS

    @property
    def schemas(self) -> tuple[str, ...]:
        """The schemas in which names without one are looked up, in this order."""
        return tuple(dict.fromkeys(each.partition(".")[0] for each in self.tables))

    def allows_table(self, schema: str, table: str) -> bool:
        return f"{schema}.*" in self.tables or f"{schema}.{table}" in self.tables

    def allows_function(self, schema: str, name: str) -> bool:
        """Tell whether a function may be called; one without a schema is looked up in the catalog first."""
        if schema in ("", CATALOG) and name in self.builtin_functions:
            return True
        schemas = (schema,) if schema else self.schemas
        return any(f"{each}.{name}" in self.functions for each in schemas)


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """A statement that reads, as `text` without EXPLAIN, the semicolon and what stands around it.

    `gathers` tells whether it makes one value of many, and `growth` by how much its functions make values longer.
    """

    text: str
    is_explain: bool
    attributes: frozenset[str]
    types: frozenset[tuple[str, str]] = frozenset()
    gathers: bool = False
    growth: int = 1


def refuse(rule: str, problem: str, hint: str) -> SemanticViolation:
    """Build the refusal of a statement by a rule."""
    return SemanticViolation(f"{problem} (rule {rule}): {hint}", details={"rule": rule, "hint": hint})


def admit_statement(sql: str, access: Access) -> Statement:
    """Admit a statement that reads, or raise `SemanticViolation` with the rule that it breaks and a hint."""
    if len(sql) > MAX_SQL or "\0" in sql:
        raise refuse(
            "length", f"the statement has more than {MAX_SQL} characters, or a zero byte", "send a shorter one"
        )
    try:
        return _admit(sql, pgparse.parse(sql), access)
    except pgparse.PGQueryError as error:
        hint = f"correct it at character {error.position}" if error.position else "correct it"
        raise refuse("syntax", str(error.message)[:200], hint) from error
    except RecursionError as error:
        raise refuse("nesting", "the statement is nested too deeply", "use IN (…) or fewer operators") from error
    except UnicodeEncodeError as error:
        raise refuse("syntax", "the statement is not Unicode", "send text without lone surrogates") from error


def _admit(sql: str, statements: list[dict[str, Any]], access: Access) -> Statement:
    if len(statements) != 1:
        raise refuse("one-statement", f"these are {len(statements)} statements", _HINT_READ)
    ((tag, fields),) = statements[0]["stmt"].items()
    is_explain = tag == "ExplainStmt"
    if is_explain:
        for option in fields.get("options", ()):
            name = option["DefElem"]["defname"]
            if name not in _EXPLAIN_OPTIONS:
                raise refuse("explain", f"EXPLAIN with {name} can run the statement", "use FORMAT, COSTS and VERBOSE")
        ((tag, fields),) = fields["query"].items()
    if tag != "SelectStmt":
        raise refuse("reads-only", f"{tag.removesuffix('Stmt').upper()} is not a statement that only reads", _HINT_READ)
    judge = _Judge(access)
    judge.judge_select(fields, frozenset(), 0)
    judge.require_bounded_size()
    start = statements[0].get("stmt_location", 0)
    end = start + statements[0]["stmt_len"] if "stmt_len" in statements[0] else None
    text = sql.encode()[start:end].decode()
    return Statement(
        text=_find_explained(text, fields) if is_explain else text, is_explain=is_explain,
        attributes=frozenset(judge.attributes), types=frozenset(judge.types), gathers=judge.gathers,
        growth=judge.growth,
    )  # fmt: skip


def _find_explained(text: str, fields: Mapping[str, Any]) -> str:
    """Find the statement after EXPLAIN: the end of the text that has the same parse."""
    wanted = _drop_places(fields)
    for place, match in enumerate(_BEGINNING.finditer(text)):
        if place == _MAX_CANDIDATES:
            break
        try:
            parsed = pgparse.parse(text[match.start() :])
        except pgparse.PGQueryError:
            continue
        if len(parsed) == 1 and _drop_places(parsed[0]["stmt"].get("SelectStmt")) == wanted:
            return text[match.start() :]
    raise refuse("explain", "the statement after EXPLAIN was not found", "leave comments out")


def _drop_places(value: Any) -> Any:
    if isinstance(value, list):
        return [_drop_places(each) for each in value]
    if isinstance(value, dict):
        return {name: _drop_places(each) for name, each in value.items() if name != "location"}
    return value


class _Judge:
    """Goes through a parse tree. `tables` are the names that WITH defines where a part stands, and hide real tables."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._selects = 0
        self.attributes: set[str] = set()
        self.types: set[tuple[str, str]] = set()
        self.gathers = False
        # By how much nested functions multiply a value: at this place, at most in this SELECT, and in all together.
        self._repeats_here = self._repeats_most = self._repeats = 1
        self._length = 1
        # What may give any number of rows, which the planner does not know.
        self._is_recursive = False
        self._row_functions = 0

    @property
    def growth(self) -> int:
        """By how much the functions of the statement make a value longer, once it is judged."""
        return self._repeats * self._length

    def judge_select(self, fields: Mapping[str, Any], tables: frozenset[str], depth: int) -> None:
        self._selects += 1
        if depth > MAX_NESTING or self._selects > MAX_SELECTS:
            raise refuse(
                "nesting",
                f"there are more than {MAX_NESTING} levels of subqueries, or more than {MAX_SELECTS} SELECTs",
                "ask in several smaller queries",
            )
        if "intoClause" in fields:
            raise refuse("reads-only", "SELECT INTO creates a table", "leave INTO out")
        if "lockingClause" in fields:
            raise refuse("locks", "FOR UPDATE and FOR SHARE lock rows", "leave the lock out")
        sources = fields.get("fromClause", [])
        joins = max(len(sources) - 1, 0) + sum(map(_count_joins, sources))
        if joins > MAX_JOINS:
            raise refuse("joins", f"one SELECT joins {joins + 1} tables", f"join at most {MAX_JOINS + 1}")
        outer = self._repeats_here, self._repeats_most
        self._repeats_here = self._repeats_most = 1
        tables = self._judge_with(fields.get("withClause", {}), tables, depth)
        for name, value in fields.items():
            if name in ("larg", "rarg"):
                self.judge_select(value, tables, depth)
            elif name != "withClause":
                self._judge_field(name, value, tables, depth)
        self._repeats *= self._repeats_most
        self._repeats_here, self._repeats_most = outer

    def _judge_with(self, clause: Mapping[str, Any], tables: frozenset[str], depth: int) -> frozenset[str]:
        parts = [each["CommonTableExpr"] for each in clause.get("ctes", ())]
        if clause.get("recursive"):
            self._is_recursive = True
            tables |= {part["ctename"] for part in parts}
        for part in parts:
            if "SelectStmt" not in part["ctequery"]:
                raise refuse("reads-only", "a part of WITH changes data", "put only SELECTs into WITH")
            for name, value in part.items():
                self._judge_field(name, value, tables, depth)
            tables |= {part["ctename"]}
        return tables

    def _judge_field(self, name: str, value: Any, tables: frozenset[str], depth: int) -> None:
        if isinstance(value, list):
            for each in value:
                self._judge_field(name, each, tables, depth)
        elif isinstance(value, dict) and value:
            tag, content = next(iter(value.items()))
            if tag[0].isupper():
                self._judge_part(tag, content, tables, depth)
            elif name == "typeName":
                self._judge_part("TypeName", value, tables, depth)
            elif name in _PLAIN_FIELDS:
                self._judge_fields(value, tables, depth)
            else:
                raise refuse("grammar", f"{name} is not among the parts of SQL that are allowed here", _HINT_READ)

    def _judge_fields(self, fields: Mapping[str, Any], tables: frozenset[str], depth: int) -> None:
        for name, value in fields.items():
            self._judge_field(name, value, tables, depth)

    def _judge_part(self, tag: str, fields: Mapping[str, Any], tables: frozenset[str], depth: int) -> None:
        if tag not in _PARTS:
            raise refuse("grammar", f"{tag} is not among the parts of SQL that are allowed here", _HINT_READ)
        if tag == "SelectStmt":
            return self.judge_select(fields, tables, depth + 1)
        repeats = 1
        if tag in _GATHERING_PARTS or fields.get("subLinkType") == "ARRAY_SUBLINK":
            self.gathers = True
        if tag == "RangeVar":
            self._judge_table(fields, tables)
        elif tag == "FuncCall":
            self._judge_function(_list_names(fields["funcname"]))
            repeats = self._judge_size(_list_names(fields["funcname"])[-1], fields.get("args", ()))
        elif tag in _OPERATOR_FIELDS:
            self._judge_operator(_list_names(fields.get(_OPERATOR_FIELDS[tag], ())))
        elif tag == "TypeName":
            names = _list_names(fields.get("names", ()))
            self._judge_type(names)
            if names and names[-1] in _FILLED_TYPES and fields.get("typmods"):
                self._fill(names[-1], _read_number(fields["typmods"][0]))
        elif tag == "RangeTableSample":
            self._judge_sample(_list_names(fields["method"]))
        elif tag == "ColumnRef":
            self.attributes.update(_list_names(fields["fields"])[1:])
        elif tag == "A_Indirection":
            self.attributes.update(_list_names(fields["indirection"]))
        self._repeats_here *= repeats
        self._repeats_most = max(self._repeats_most, self._repeats_here)
        self._judge_fields(fields, tables, depth)
        self._repeats_here //= repeats
        return None

    def _judge_table(self, fields: Mapping[str, Any], tables: frozenset[str]) -> None:
        schema, table = fields.get("schemaname", ""), fields["relname"]
        if not schema and table in tables and "catalogname" not in fields:
            return
        name = f"{schema}.{table}" if schema else table
        allowed = ", ".join(self._access.tables)[:200]
        if schema in (CATALOG, "information_schema") or (not schema and table.startswith("pg_")):
            raise refuse("catalogs", f"{name} is a system catalog", "call sql.schema to learn of tables and columns")
        if "catalogname" in fields or not all(
            self._access.allows_table(each, table) for each in ((schema,) if schema else self._access.schemas)
        ):
            hint = f"use {allowed}" if schema else f"write its schema before it; allowed are {allowed}"
            raise refuse("tables", f"table {name} is not allowed", hint)

    def _judge_function(self, names: list[str]) -> None:
        schema, name = names[0] if len(names) == 2 else "", names[-1]
        if len(names) > 2 or not self._access.allows_function(schema, name):
            raise refuse(
                "functions",
                f"function {'.'.join(names)} is not allowed",
                "use a built-in function that only computes, or ask the operator to name yours in [builtin.sql] "
                "functions",
            )

    def _judge_size(self, name: str, arguments: Sequence[Mapping[str, Any]]) -> int:
        """Return by how much a function multiplies what it gets. Refuse it if how long or how many is not known."""
        if name in _MULTIPLYING and len(arguments) > 1:
            return max(self._require_number(name, _read_number(arguments[_MULTIPLYING[name]])), 1)
        if name in _FILLING and len(arguments) > 1:
            self._fill(name, _read_number(arguments[_FILLING[name]]))
        elif name == "format" and arguments:
            self._fill(name, _read_format_width(arguments[0]))
        elif name == "generate_series" and not all(map(_is_constant, arguments)):
            hint = "write its arguments as constants or parameters"
            raise refuse("size", "generate_series has a length that is not known before", hint)
        elif name in _ROW_FUNCTIONS:
            self._row_functions += 1
        elif _GATHERING.fullmatch(name):
            self.gathers = True
        return 1

    def _fill(self, what: str, number: int | None) -> None:
        self._length = max(self._length, self._require_number(what, number))

    def _require_number(self, what: str, number: int | None) -> int:
        if number is None or number > MAX_GROWTH:
            raise refuse(
                "size", f"how long {what} makes a value is not written out, or more than {MAX_GROWTH}",
                "write a smaller number as a constant",
            )  # fmt: skip
        return number

    def require_bounded_size(self) -> None:
        """Refuse to make values too long together, and to gather rows into one if nobody knows how many there are."""
        if self.growth > MAX_GROWTH:
            problem = f"functions that make values longer do so {self.growth} times together, and {MAX_GROWTH} is the "
            raise refuse("size", f"{problem}most", "write smaller numbers")
        if self.gathers and self._is_recursive:
            problem = "a statement with WITH RECURSIVE gathers rows into one value, and their number is not known"
            raise refuse("size", problem, "return the rows instead")
        if self.gathers and (self._row_functions > 1 or (self._row_functions and self.growth > 1)):
            problem = "a statement gathers rows of functions into one value, and their number is not known"
            raise refuse("size", problem, "use one function that returns rows, or return the rows instead")

    def _judge_operator(self, names: list[str]) -> None:
        if names[:-1] not in ([], [CATALOG]):
            raise refuse("functions", f"operator {'.'.join(names)} is not allowed", "use it without OPERATOR(…)")

    def _judge_type(self, names: list[str]) -> None:
        if not names:
            return
        # That of an array has a name of its own.
        name = names[-1].lstrip("_")
        if name.startswith(("reg", "pg_")) and name not in _SAFE_CATALOG_TYPES:
            raise refuse("catalogs", f"a value of type {names[-1]} reads the catalogs", "use text instead")
        if names[0] != CATALOG:
            schema = names[-2] if len(names) > 1 else ""
            self.types |= {(schema, names[-1]), (schema, name)}

    def _judge_sample(self, names: list[str]) -> None:
        if names[:-1] not in ([], [CATALOG]) or names[-1] not in _SAMPLE_METHODS:
            raise refuse("functions", f"method {'.'.join(names)} is not allowed", "use SYSTEM or BERNOULLI")


def _read_number(part: Mapping[str, Any]) -> int | None:
    """Read a number that is written out, or how many elements an array of such numbers has; None for anything else."""
    if "A_ArrayExpr" in part:
        numbers = [_read_number(each) for each in part["A_ArrayExpr"].get("elements", ())]
        return math.prod(each for each in numbers if each is not None) if None not in numbers else None
    constant = part.get("A_Const", {})
    number: int | None = constant["ival"].get("ival", 0) if "ival" in constant else None
    return number


def _read_format_width(part: Mapping[str, Any]) -> int | None:
    """Read how wide a format makes a value; None if that is not written out."""
    if "sval" not in part.get("A_Const", {}):
        return None
    widths = _FORMAT_WIDTH.findall(part["A_Const"]["sval"].get("sval", ""))
    return None if "*" in widths else max((int(each[:9]) for each in widths), default=0)


def _is_constant(part: Mapping[str, Any]) -> bool:
    """Tell whether a value stands in the statement or is a parameter, so that the planner knows it."""
    if "TypeCast" in part:
        return _is_constant(part["TypeCast"]["arg"])
    if "A_Expr" in part and "lexpr" not in part["A_Expr"]:
        return _is_constant(part["A_Expr"]["rexpr"])
    return "A_Const" in part or "ParamRef" in part


def _list_names(parts: Any) -> list[str]:
    return [each["String"]["sval"] for each in parts if "String" in each]


def _count_joins(source: Mapping[str, Any]) -> int:
    fields = source.get("JoinExpr")
    return 0 if fields is None else 1 + _count_joins(fields["larg"]) + _count_joins(fields["rarg"])
