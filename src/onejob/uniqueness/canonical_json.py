"""The canonical text of a value: one text for all values that are equal after Celery's JSON, other texts for others.

It is JSON, with tags for types that JSON lacks. docs/concepts/identity.md lists the rules type by type.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

from onejob.errors import InvalidPayloadError
from onejob.jobs.text_limits import TextLimits

ALGORITHM: Final = "v1"
"""The version of these rules, with which each digest begins."""
_INTEGER_BOUND: Final = 10**4300
_ADVICE: Final = "pass an id or plain values instead"
_MAX_WRAPPERS: Final = 16
_MAX_MESSAGE_TEXT: Final = 120
_DEFAULT_LIMITS: Final = TextLimits()


def canonical(value: object, limits: TextLimits = _DEFAULT_LIMITS, *, root: str = "value", owner: str = "") -> str:
    """Return the canonical JSON of `value`: sorted keys, no spaces, tags for types that JSON lacks.

    Raises InvalidPayloadError for unsupported values and beyond the limits. Its message has the path of the value,
    which begins with `owner` and `root`.
    """
    if _is_plain(value, limits):  # the standard library writes plain values as `_Writer` does, many times faster
        with suppress(ValueError, RecursionError):  # a number that is not finite, a lone surrogate
            text = "".join(_encode_plain(value, 0))
            needs_tags = "\\u0000" in text or '"$' in text or '"__type__"' in text
            if len(text.encode()) <= limits.size and not needs_tags:
                return text
    return _Writer(limits, root, owner).write(value)


def digest(text: str) -> str:
    """Return the hash of a canonical text."""
    return f"{ALGORITHM}-{hashlib.sha256(text.encode()).hexdigest()}"


def plain_encoder(
    *, ascii_only: bool, sort_keys: bool, separators: tuple[str, str]
) -> Callable[[object, int], Iterable[str]]:
    """Return a function of a plain value and the level 0 that returns the parts of its JSON text.

    The text is that of `json.JSONEncoder.encode`, which would build the function anew for each value. The function
    raises TypeError, ValueError (also for a number that is not finite), and RecursionError for cycles.
    """
    slow = json.JSONEncoder(
        ensure_ascii=ascii_only, allow_nan=False, check_circular=False, sort_keys=sort_keys, separators=separators
    )
    build: Any = getattr(json.encoder, "c_make_encoder", None)
    if build is None:
        return cast("Callable[[object, int], Iterable[str]]", slow.iterencode)
    quote = json.encoder.encode_basestring_ascii if ascii_only else json.encoder.encode_basestring
    item_separator, key_separator = separators
    encode: Callable[[object, int], Iterable[str]] = build(
        None, slow.default, quote, None, key_separator, item_separator, sort_keys, skipkeys=False, allow_nan=False
    )
    return encode


_encode_plain: Final = plain_encoder(ascii_only=False, sort_keys=True, separators=(",", ":"))
KOMBU_KEYS: Final = frozenset({"__type__", "__value__"})
"""The keys of a mapping that kombu's JSON decodes as a value of another type."""
_PLAIN_INTEGER: Final = 2**64
_TEXT_ONLY: Final = frozenset({str})
_CONTAINERS: Final = frozenset({dict, list, tuple})
_OTHERS: Final = frozenset({float, bool, type(None)})


def _is_plain(value: object, limits: TextLimits) -> bool:  # noqa: C901 - one function: calls took a third of its time
    """Return whether a value is within the limits and consists of JSON's own types, without subclasses.

    The result is False for a value that contains itself: it is too deep, or has too many values in it.
    """
    level: list[Any] = [value if type(value) in _CONTAINERS else [value]]
    remaining = limits.size  # each value takes a byte at least
    for _ in range(limits.depth):
        deeper: list[Any] = []
        for container in level:
            values = container
            remaining -= len(container)
            if remaining < 0:
                return False
            if type(container) is dict:
                if not _TEXT_ONLY.issuperset(map(type, container)):
                    return False
                values = container.values()
                remaining -= sum(map(len, container))
            for each in values:
                kind = type(each)
                if kind is str:
                    remaining -= len(each)
                elif kind in _CONTAINERS:
                    deeper.append(each)
                elif not (kind in _OTHERS or (kind is int and -_PLAIN_INTEGER < each < _PLAIN_INTEGER)):
                    return False
            if remaining < 0:
                return False
        if not deeper:
            return True
        level = deeper
    return False


def key_text(key: object) -> str | None:
    """Return the JSON text of a mapping's key, or None for an unsupported type."""
    try:
        return _key(key)
    except _RefusalError:
        return None


class _RefusalError(Exception):
    """The reason why a value has no canonical text, as the end of a sentence that begins with the value's path."""


_Child: TypeAlias = tuple[str | int, object]
"""A value in a container, after the step that leads to it."""


class _Writer:
    """Writes one canonical text, with an explicit stack, because deep values would exceed the recursion limit."""

    def __init__(self, limits: TextLimits, root: str, owner: str = "") -> None:
        self._limits = limits
        self._remaining = limits.size
        self._root = root
        self._owner = owner
        self._steps: list[str | int] = []
        self._open: list[Iterator[str | _Child]] = []

    def write(self, value: object) -> str:
        """Return the canonical text of `value`; raises InvalidPayloadError. Call it once per writer."""
        try:
            return "".join(self._texts(value))
        except _RefusalError as refusal:
            path = self._root
            for step in self._steps:
                if isinstance(step, int) or (path and not step.isidentifier()):
                    path += f"[{step!r}]"
                else:
                    path += f".{step}" if path else step
            message = f"{self._owner}{short(path) or 'the call'} {refusal}"
            raise InvalidPayloadError(message) from refusal.__cause__

    def _texts(self, value: object) -> Iterator[str]:
        self._open.append(self._pieces(value))
        while self._open:
            piece = next(self._open[-1], None)
            if piece is None:
                self._open.pop()
                del self._steps[-1:]
            elif isinstance(piece, str):
                self._remaining -= self._check_size(len(piece.encode()))
                yield piece
            else:
                step, child = piece
                self._steps.append(step)
                self._open.append(self._pieces(child))

    def _pieces(self, value: object) -> Iterator[str | _Child]:
        plain = _unwrap(value)
        self._check_size(_min_size(plain))
        text = _scalar(plain)
        if text is not None:
            return iter((text,))
        if not isinstance(plain, (list, tuple, Mapping)):
            is_set = isinstance(plain, (set, frozenset))
            lack = "no order and no JSON; pass a sorted list instead" if is_set else f"no canonical text; {_ADVICE}"
            raise _RefusalError(f"is of type {kind_of(plain)}, which has {lack}")
        if len(self._open) >= self._limits.depth:
            raise _RefusalError(f"is nested deeper than {self._limits.depth} levels, or contains itself; {_ADVICE}")
        return self._mapping(plain) if isinstance(plain, Mapping) else _list(plain)

    def _mapping(self, mapping: Mapping[object, object]) -> Iterator[str | _Child]:
        entries: dict[str, object] = {}
        for key, value in mapping.items():
            self._check_size(_min_size(key))
            text = _key(key)
            if text in entries:
                raise _RefusalError(f"has two keys that JSON writes as {short(repr(text))}; keep one of them")
            entries[text] = value
        if entries.keys() == KOMBU_KEYS:
            raise _RefusalError("has only the keys '__type__' and '__value__', reserved by Celery's JSON; rename one")
        yield "{"
        for index, name in enumerate(sorted(entries)):
            escaped = f"${name}" if name.startswith("$") else name
            yield ("," if index else "") + _quoted(escaped) + ":"
            yield name, entries[name]
        yield "}"

    def _check_size(self, size: int) -> int:
        if size > self._remaining:
            raise _RefusalError(f"takes the canonical text past {self._limits.size} bytes; {_ADVICE}")
        return size


def _list(items: Sequence[object]) -> Iterator[str | _Child]:
    yield "["
    for index, item in enumerate(items):
        if index:
            yield ","
        yield index, item
    yield "]"


def _min_size(value: object) -> int:
    """Return a lower bound of the text's size in constant time, to refuse large values before reading them."""
    if isinstance(value, memoryview):
        return value.nbytes
    return len(value) if isinstance(value, (str, bytes, bytearray, list, tuple, Mapping)) else 0


def _unwrap(value: object) -> object:
    """Unwrap Enums, dataclasses, Pydantic models and `__json__`. Raises _RefusalError."""
    for _ in range(_MAX_WRAPPERS):
        try:
            inner = _unwrap_once(value)
        except Exception as error:  # application code runs here and may raise anything
            raise _RefusalError(
                f"is of type {kind_of(value)} and cannot be read ({kind_of(error)}); {_ADVICE}"
            ) from error
        if inner is value:
            return value
        value = inner
    raise _RefusalError(f"is of type {kind_of(value)} and wraps itself; {_ADVICE}")


def _unwrap_once(value: object) -> object:
    if isinstance(value, (str, int, float, list, tuple, dict, type(None))):
        return value
    kind = type(value)
    if hasattr(kind, "__json__"):  # kombu's JSON checks it before the type
        return kind.__json__(value)
    return value if isinstance(value, _TAGGED) else _content(value, kind)


def _content(value: object, kind: type[Any]) -> object:
    if isinstance(value, Enum):
        return value.value
    if hasattr(kind, "model_dump"):
        return kind.model_dump(value, mode="python")
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    django = sys.modules.get("django.utils.functional")  # kombu sends a lazy text of Django as its text, too
    return str(value) if django is not None and isinstance(value, django.Promise) else value


def _scalar(value: object) -> str | None:
    """Return the text of a scalar; None for a container or an unsupported type."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return _quoted(_checked(value, "contains"))
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return _finite(float.__repr__(value), finite=math.isfinite(value))
    return next((f'{{"${tag}":"{text(value)}"}}' for kinds, tag, text in _TAGS if isinstance(value, kinds)), None)


def _integer(value: int) -> str:
    try:
        if abs(int.__pos__(value)) < _INTEGER_BOUND:
            return int.__repr__(value)
    except ValueError:  # sys.set_int_max_str_digits can allow fewer
        pass
    raise _RefusalError(
        "is an integer with more than 4300 digits, or than sys.set_int_max_str_digits allows; pass it as bytes"
    )


def _finite(text: str, *, finite: bool) -> str:
    if finite:
        return text
    raise _RefusalError(f"is {text}, but only finite numbers have an identity; pass None or a string")


# Call the methods of the base types, as kombu's JSON does, not the methods of a subclass. datetime precedes date, its
# base class.
_TAGS: Final[tuple[tuple[Any, str, Callable[[Any], str]], ...]] = (
    (datetime, "datetime", datetime.isoformat),
    (date, "date", date.isoformat),
    (time, "time", time.isoformat),
    (timedelta, "timedelta", lambda value: str(value // timedelta(microseconds=1))),
    (UUID, "uuid", UUID.__str__),
    # The decimal context of the thread selects 1E+5 or 1e+5.
    (Decimal, "decimal", lambda value: _finite(Decimal.__str__(value).upper(), finite=Decimal.is_finite(value))),
    ((bytes, bytearray, memoryview), "bytes", lambda value: base64.b64encode(memoryview(value).tobytes()).decode()),
)
_TAGGED: Final = tuple(kinds for kinds, _, _ in _TAGS)


def _key(key: object) -> str:
    """Return the JSON text of a mapping's key; raises _RefusalError for an unsupported type."""
    if isinstance(key, str):
        return _checked(key, "has a key with")
    text = _scalar(key) if key is None or isinstance(key, (int, float)) else None
    if text is None:
        raise _RefusalError(f"has a key of type {kind_of(key)}; use string keys, or pass a list of pairs")
    return text


def _checked(value: str, verb: str) -> str:
    text = str.__str__(value)
    if "\0" in text:
        raise _RefusalError(f"{verb} a NUL character, which databases cannot store; remove it, or pass bytes")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _RefusalError(f"{verb} a lone surrogate, which UTF-8 cannot encode; remove it, or pass bytes") from None
    return text


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def kind_of(value: object) -> str:
    """Return the name of a value's type, with its module unless it is a builtin."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def short(text: str) -> str:
    """Truncate a text for an error message."""
    return text if len(text) <= _MAX_MESSAGE_TEXT else f"{text[:_MAX_MESSAGE_TEXT]}…"
