"""Every time and number of a request is one that everything behind it can compute with."""

import importlib
import pkgutil
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter, ValidationError

from deputize.core.errors import MalformedRequest
from deputize.interfaces import rest
from deputize.interfaces.console.entry_query import build_query
from deputize.interfaces.rest.admin.revocations import RevocationsQuery
from deputize.interfaces.rest.models import Moment, RequestModel

_OUT_OF_RANGE = ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "1899-12-31T00:00:00Z")


def _list_times() -> list[tuple[str, Any]]:
    for each in pkgutil.walk_packages(rest.__path__, f"{rest.__name__}."):
        importlib.import_module(each.name)
    models, times = [RequestModel], []
    while models:
        model = models.pop()
        models += model.__subclasses__()
        for name, field in model.model_fields.items():
            kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            if "date-time" in str(TypeAdapter(kind).json_schema()):
                times.append((f"{model.__name__}.{name}", kind))
    return times


def test_every_time_in_a_request_is_in_range_in_utc() -> None:
    times = _list_times()
    assert len(times) >= 10
    for name, kind in times:
        for text in _OUT_OF_RANGE:
            with pytest.raises(ValidationError, match="must be a time from 1900 to 8999"):
                raise AssertionError((name, TypeAdapter(kind).validate_python(text)))


def test_a_time_has_a_zone_and_is_converted_to_utc() -> None:
    moment = TypeAdapter(Moment).validate_python("2026-11-01T01:00:00+01:00")
    assert (moment, moment.tzinfo) == (datetime(2026, 11, 1, tzinfo=UTC), UTC)
    for text in ("2026-11-01T00:00:00", "0", 0):
        with pytest.raises(ValidationError):
            TypeAdapter(Moment).validate_python(text)


def test_an_epoch_fits_the_database() -> None:
    with pytest.raises(ValidationError):
        RevocationsQuery(before=99_999_999_999_999_999_999)


def test_a_time_on_a_page_is_in_range() -> None:
    with pytest.raises(MalformedRequest, match="from must be a time"):
        build_query({"from": _OUT_OF_RANGE[1]}, of_calls=True)
