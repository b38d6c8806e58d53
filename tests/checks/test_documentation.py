"""Every setting, error, route and command is documented; the pages say what the code says."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer.main
from pydantic import BaseModel, Field
from starlette.routing import Route

from deputize.core.errors import list_problem_types
from deputize.core.settings import Settings
from deputize.core.telemetry import METRIC_HELP, METRIC_LABELS, Metric
from deputize.interfaces.asgi import build_api
from deputize.interfaces.cli.main import app
from docs import generate, promises

TESTS = Path(__file__).resolve().parents[1]


def _read_page(name: str) -> str:
    return (generate.FOLDER / name).read_text(encoding="utf-8")


def test_every_promise_is_shown_by_a_test_and_every_test_names_a_promise() -> None:
    rows = promises.load_rows()
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")]
    marks = [arguments for text in texts for arguments in re.findall(r"mark\.requirement\(([^)]*)\)", text)]
    marked = {row for arguments in marks for row in re.findall(r'"([^"]+)"', arguments)}

    assert marked <= rows.keys()
    assert {name for name, row in rows.items() if row["state"] != "planned"} <= marked
    assert {row["state"] for row in rows.values()} <= set(promises.STATES)
    assert {name.partition("-")[0] for name in rows} <= promises.GROUPS.keys()


def test_every_setting_is_explained() -> None:
    page = _read_page("settings.md")

    def check_fields(model: type[BaseModel]) -> None:
        for name, field in model.model_fields.items():
            section = generate._find_section(field)
            if section is not None:
                check_fields(section[0])
            else:
                assert field.description, f"{model.__name__}.{name} has no description"
                assert f"| `{name}` |" in page

    check_fields(Settings)


def test_generated_pages_show_values_as_users_write_them_and_never_as_python_does() -> None:
    for name in generate.PAGES:
        page = _read_page(name)
        for leaked in ("<class", "annotation=", "NoneType", "Undefined", "PosixPath", "object at 0x", "metadata="):
            assert leaked not in page, f"{name} shows {leaked}"
    assert generate.render_type(tuple[Annotated[int, Field(ge=1)], ...]) == "list of integers"
    assert generate.render_type(dict[str, str]) == "table of strings"
    assert generate.render_type(Literal["a", "b"] | None) == '`"a"` or `"b"`'
    assert generate.render_value({"x": (True, 1.5, 2.0, Path("a"))}) == '{x = [true, 1.5, 2, "a"]}'


@pytest.mark.requirement("CON-6")
def test_every_error_is_explained() -> None:
    page = _read_page("errors.md")

    for problem in list_problem_types():
        assert f"| {problem.spec.e_number} | `{problem.spec.slug}` |" in page
        assert problem.spec.advice.endswith((".", "?"))


def test_every_route_is_explained() -> None:
    page = _read_page("routes.md")
    document = generate.build_api_document()

    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation.get("summary"), f"{method} {path} has no summary"
            assert f"## {method.upper()} {path}\n" in page
    served = {
        (method.lower(), route.path)
        for route in build_api(lambda: None).rest.routes  # type: ignore[arg-type, return-value]  # never opened here
        if isinstance(route, Route)
        for method in route.methods or ()
        if method not in ("HEAD", "OPTIONS")
    }
    told = {(method, path) for path, operations in document["paths"].items() for method in operations}
    assert served - told <= {("get", "/docs"), ("get", "/openapi.json")}


def test_every_command_has_help_an_example_and_json() -> None:
    page = _read_page("cli.md")

    for name, command in generate.walk_commands():
        if name == "deputize":
            continue
        assert command.help, name
        assert (command.epilog or "").startswith(f"Example: {name}"), name
        assert f"## {name}\n" in page
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{name} {parameter.name}"
        if not hasattr(command, "commands"):
            assert any(parameter.name == "json" for parameter in command.params), name


def test_every_metric_says_what_it_counts() -> None:
    assert set(METRIC_HELP) == set(METRIC_LABELS) == set(Metric)


def test_help_loads_nothing_heavy() -> None:
    heavy = "{'asyncpg', 'cryptography', 'fastapi', 'httpx2', 'jwt', 'opentelemetry', 'pydantic', 'rich', 'uvicorn'}"
    script = f"import sys, deputize.__main__; print(sorted({heavy} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"
    assert typer.main.get_command(app).name == "deputize"
