"""Dataclasses and pydantic models as JSON, and back: what an annotation says about a value.

Pydantic is not needed: an annotation can only name its models where it has been imported.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Annotated, Any, Protocol, TypeAlias, Union, get_args, get_origin, get_type_hints
from uuid import UUID

TEXTS: dict[type, tuple[Callable[[Any], str], Callable[[str], object]]] = {
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    time: (time.isoformat, time.fromisoformat),
    UUID: (str, UUID),
    Decimal: (str, Decimal),
}
"""Types of fields that are texts in JSON: how they are written and read."""
PLAIN: dict[type, type | tuple[type, ...]] = {int: int, float: (int, float), str: str, bool: bool}
Convert: TypeAlias = Callable[[Any, str], Any]


class UnfitValueError(ValueError):
    """A value does not fit its annotation. The message names the field."""


class Codec(Protocol):
    """Writes and reads the values of one annotation. `where`: the name of the value, for the message."""

    def dump(self, value: Any, where: str) -> Any:
        """Return the JSON value of an object, or of JSON that fits. Raises `UnfitValueError`."""

    def build(self, value: Any, where: str) -> Any:
        """Return the object of a JSON value. Raises `UnfitValueError`."""


def codec_of(annotation: Any) -> Codec | None:
    """Return what writes and reads the values of an annotation; None if it has no dataclass and no model in it."""
    if _has_model(annotation):
        return _Pydantic(annotation)
    return _Plain(annotation) if _mentions(annotation, dataclasses.is_dataclass) else None


def hints_of(function: Any) -> dict[str, Any]:
    """Return the annotations of a function, without those that cannot be evaluated."""
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:  # noqa: BLE001 - an annotation may be any expression
        return {name: hint for name, text in _annotations(function) if (hint := _evaluate(function, text)) is not None}


def _annotations(function: Any) -> list[tuple[str, Any]]:
    try:
        return list(function.__annotations__.items())
    except (AttributeError, NameError):
        return []


def _evaluate(function: Any, annotation: Any) -> Any:
    stand_in = types.SimpleNamespace(__annotations__={"value": annotation})
    try:
        return get_type_hints(stand_in, getattr(function, "__globals__", {}), include_extras=True)["value"]
    except Exception:  # noqa: BLE001 - an annotation may be any expression
        return None


def _mentions(annotation: Any, is_wanted: Callable[[Any], bool]) -> bool:
    """Return whether an annotation is such a class, or has one in it."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return is_wanted(annotation)
    return any(
        _mentions(each, is_wanted) for each in (get_origin(annotation), *get_args(annotation)) if each is not None
    )


def _has_model(annotation: Any) -> bool:
    pydantic: Any = sys.modules.get("pydantic")
    if pydantic is None:
        return False

    def is_model(kind: type) -> bool:
        return issubclass(kind, pydantic.BaseModel) or pydantic.dataclasses.is_pydantic_dataclass(kind)

    return _mentions(annotation, is_model)


class _Pydantic:
    """An annotation with a pydantic model: pydantic does all of it."""

    def __init__(self, annotation: Any) -> None:
        from pydantic import TypeAdapter

        self._adapter: Any = TypeAdapter(annotation)

    def dump(self, value: Any, where: str) -> Any:
        return self._adapter.dump_python(self.build(value, where), mode="json", by_alias=True, round_trip=True)

    def build(self, value: Any, where: str) -> Any:
        from pydantic import ValidationError

        try:
            text = json.dumps(value)
        except (TypeError, ValueError):  # it has objects in it
            text = None
        try:
            return self._adapter.validate_python(value) if text is None else self._adapter.validate_json(text)
        except ValidationError as error:
            first, *others = error.errors(include_url=False, include_context=False, include_input=False)
            field = ".".join(map(str, (where, *first["loc"])))
            more = f" (and {len(others)} more)" if others else ""
            raise UnfitValueError(f"{field}: {first['msg']}{more}") from None


class _Plain:
    """An annotation with a dataclass, and with what stands beside it in JSON."""

    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation

    def dump(self, value: Any, where: str) -> Any:
        return _dump(_build(self._annotation, value, where))

    def build(self, value: Any, where: str) -> Any:
        return _build(self._annotation, value, where)


def _dump(value: Any) -> Any:
    """Return the JSON value of an object that fits its annotation."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _dump(getattr(value, each.name)) for each in dataclasses.fields(value) if each.init}
    if isinstance(value, Enum):
        return value.value
    if type(value) in TEXTS:
        return TEXTS[type(value)][0](value)
    if isinstance(value, Mapping):
        return {key: _dump(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_dump(each) for each in value]
    return value


def _build(annotation: Any, value: Any, where: str) -> Any:
    """Return the object of an annotation for a JSON value, or for an object that fits already."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _build(parts[0], value, where)
    if origin in {Union, types.UnionType}:
        return _build_union(parts, value, where)
    kind = origin or annotation
    if not isinstance(kind, type):
        return value  # Any, a type variable, ...
    return _build_kind(kind, parts, value, where)


def _build_kind(kind: Any, parts: Sequence[Any], value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, value, where)
    if issubclass(kind, tuple) and parts and parts[-1] is not ...:
        return _build_tuple(parts, value, where)
    if issubclass(kind, Mapping) and len(parts) == 2:  # noqa: PLR2004 - keys and values
        _check(value, Mapping, "an object", where)
        return {key: _build(parts[1], each, f"{where}.{key}") for key, each in value.items()}
    if parts and issubclass(kind, Sequence | set | frozenset):
        return _build_items(kind, parts[0], value, where)
    return _build_plain(kind, value, where)


def _build_dataclass(kind: Any, value: Any, where: str) -> Any:
    if isinstance(value, kind):
        return value
    _check(value, Mapping, kind.__name__, where)
    fields = {each.name: each for each in dataclasses.fields(kind) if each.init}
    for name in value:
        if name not in fields:
            raise UnfitValueError(f"{where}.{name}: {kind.__name__} has no such field")
    for name, each in fields.items():
        optional = each.default is not dataclasses.MISSING or each.default_factory is not dataclasses.MISSING
        if name not in value and not optional:
            raise UnfitValueError(f"{where}.{name}: the field is missing")
    hints = hints_of(kind)
    built = {name: _build(hints.get(name, Any), each, f"{where}.{name}") for name, each in value.items()}
    try:
        return kind(**built)
    except (TypeError, ValueError) as error:  # of its `__post_init__`
        raise UnfitValueError(f"{where}: {error}") from error


def _build_union(parts: Sequence[Any], value: Any, where: str) -> Any:
    if value is None and type(None) in parts:
        return None
    errors = []
    for part in parts:
        if part is type(None):
            continue
        try:
            return _build(part, value, where)
        except UnfitValueError as error:
            errors.append(error)
    raise errors[0] if len(errors) == 1 else UnfitValueError(f"{where}: fits none of its types")


def _build_items(kind: Any, part: Any, value: Any, where: str) -> Any:
    _check(value, (list, tuple, set, frozenset), "a list", where)
    built = (_build(part, each, f"{where}.{number}") for number, each in enumerate(value))
    return kind(built) if kind in {tuple, set, frozenset} else list(built)


def _build_tuple(parts: Sequence[Any], value: Any, where: str) -> tuple[Any, ...]:
    _check(value, (list, tuple), "a list", where)
    if len(value) != len(parts):
        raise UnfitValueError(f"{where}: must have {len(parts)} items, not {len(value)}")
    return tuple(_build(part, each, f"{where}.{n}") for n, (part, each) in enumerate(zip(parts, value, strict=True)))


def _build_plain(kind: Any, value: Any, where: str) -> Any:
    if kind in TEXTS and isinstance(value, str):
        return _read(TEXTS[kind][1], value, kind, where)
    if issubclass(kind, Enum) and not isinstance(value, kind):
        return _read(kind, value, kind, where)
    if kind in PLAIN:
        fits = isinstance(value, PLAIN[kind]) and (kind is bool or not isinstance(value, bool))
        _check(value, object if fits else (), kind.__name__, where)
    return value


def _read(read: Callable[[Any], Any], value: Any, kind: type, where: str) -> Any:
    try:
        return read(value)
    except (TypeError, ValueError, InvalidOperation):
        raise UnfitValueError(f"{where}: must be {kind.__name__}, not {value!r:.100}") from None


def _check(value: Any, kinds: Any, name: str, where: str) -> None:
    if not isinstance(value, kinds):
        raise UnfitValueError(f"{where}: must be {name}, not {type(value).__name__}")
