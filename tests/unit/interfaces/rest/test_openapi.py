"""Shapes in the API document are named by their class alone, so two classes of one name would be one shape there."""

import importlib
import json
import pkgutil
import re
from collections import Counter
from contextlib import AbstractAsyncContextManager
from functools import cache
from typing import Any

from pydantic import BaseModel

from deputize.interfaces import rest
from deputize.interfaces.asgi import build_api
from deputize.operations.gateway import Gateway


def _never_open() -> AbstractAsyncContextManager[Gateway]:
    raise RuntimeError("this composition is only looked at")


@cache
def _build_document() -> dict[str, Any]:
    return build_api(_never_open).rest.openapi()


def test_no_two_shapes_bear_the_same_name() -> None:
    modules = [importlib.import_module(f"{rest.__name__}.{each.name}") for each in pkgutil.iter_modules(rest.__path__)]
    shapes = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    named = Counter(each.__name__ for each in shapes if issubclass(each, BaseModel))

    assert [name for name, count in named.items() if count > 1] == []


def test_no_shape_is_named_by_its_module() -> None:
    shapes = _build_document()["components"]["schemas"]

    assert [name for name in shapes if "__" in name] == []


def test_every_shape_that_is_named_is_described() -> None:
    document = _build_document()
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))

    assert named - set(document["components"]["schemas"]) == set()
