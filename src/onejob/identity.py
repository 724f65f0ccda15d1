"""What makes two calls of one task equal: the canonical text of their arguments, and its hash.

The text says what a worker receives: values that look alike once Celery's JSON has carried them share one text, and
values that differ there never do. docs/identity.md lists the rules type by type.
"""

from __future__ import annotations

import base64
import dataclasses
import difflib
import hashlib
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from inspect import Parameter, Signature
from typing import Any, Final, TypeAlias
from uuid import UUID

from onejob.errors import ConfigurationError, InvalidArgumentsError, InvalidPayloadError

if sys.version_info >= (3, 14):
    from annotationlib import Format

ALGORITHM: Final = "v1"

UniqueOn: TypeAlias = Sequence[str] | Callable[..., object] | None

_INTEGER_BOUND: Final = 10**4300
_ADVICE: Final = "pass an id or plain values instead, or name the arguments that count in unique_on"
_MISSING: Final = object()
_WRAPPERS: Final = 16
_SHOWN: Final = 120


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a canonical text may be (`size`, bytes of UTF-8) and how deep its containers may nest (`depth`).

    Raises ConfigurationError unless both are whole numbers of at least 1.
    """

    size: int = 256 * 1024
    depth: int = 64

    def __post_init__(self) -> None:
        for name in ("size", "depth"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"Limits.{name} must be a whole number of at least 1, got {value!r}")


_DEFAULT_LIMITS: Final = Limits()


def canonical(value: object, limits: Limits = _DEFAULT_LIMITS) -> str:
    """Return the one JSON text of `value`: keys sorted, no spaces, a tag where JSON has no type of its own.

    Raises InvalidPayloadError, with the path of the value at fault, for what has no such text or passes the limits.
    """
    return _Writer(limits, "value").write(value)


class Identifier:
    """What makes two calls of one task equal."""

    def __init__(
        self,
        task: str,
        function: Callable[..., object],
        unique_on: UniqueOn = None,
        *,
        bound: bool = False,
        limits: Limits = _DEFAULT_LIMITS,
    ) -> None:
        """Take the task's name, its function, and what counts; `bound` drops the function's first parameter.

        Raises ConfigurationError if the name is no text, the function has no signature, or `unique_on` does not fit it.
        """
        self._task = task
        self._task_text = _task_text(task)
        self._limits = limits
        self._signature = _signature(task, function, bound=bound)
        self._choose = _choice(task, unique_on, self._signature) if callable(unique_on) else None
        self._names = None if self._choose else _names(task, unique_on, self._signature)

    def arguments(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Return every argument of the call by name, defaults included; `**kwargs` entries under their own names.

        Raises InvalidArgumentsError if the task's signature does not take these arguments.
        """
        try:
            return _bind(self._signature, args, kwargs)
        except TypeError as error:
            message = f"task {self._task!r} cannot be called like this: {error}; it takes {_listed(self._signature)}"
            raise InvalidArgumentsError(message) from None

    def describe(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        """Return the canonical text that `identity` hashes: the task and the arguments that count.

        Raises InvalidArgumentsError, InvalidPayloadError, and whatever a callable `unique_on` raises.
        """
        arguments = self.arguments(args, kwargs)
        if self._choose is not None:
            return self._text("unique", self._choose(**arguments), "the result of unique_on")
        return self._text("arguments", arguments if self._names is None else self._selected(self._names, arguments))

    def identity(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        """Return `v1-<sha256>`, the same for calls that count as one; raises what `describe` raises."""
        return _digest(self.describe(args, kwargs))

    def fingerprint(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        """Return `v1-<sha256>` over the task and all arguments, whatever `unique_on` says.

        Raises InvalidArgumentsError, and InvalidPayloadError if any argument has no canonical text.
        """
        return _digest(self._text("arguments", self.arguments(args, kwargs)))

    def _selected(self, names: Sequence[str], arguments: Mapping[str, object]) -> dict[str, object]:
        selected = {}
        for name in names:
            root, *segments = name.split(".")
            # Only a whole keyword may be absent: a path that leads nowhere would make unrelated calls equal.
            if segments or root in arguments:
                selected[name] = self._at(name, arguments.get(root, _MISSING), segments)
        return selected

    def _at(self, path: str, value: object, segments: Sequence[str]) -> object:
        for segment in segments:
            holder, value = value, _MISSING if value is _MISSING else _member(value, segment)
            if value is _MISSING:
                reason = "the argument is absent" if holder is _MISSING else f"{_kind(holder)} has no {segment!r}"
                raise InvalidPayloadError(
                    f"task {self._task!r}: unique_on names {path!r}, which this call does not have ({reason}); "
                    "pass it, or let unique_on be a callable that copes without it"
                )
        return value

    def _text(self, role: str, value: object, root: str = "") -> str:
        text = _Writer(self._limits, root, f"task {self._task!r}: ").write(value)
        entries = sorted([("task", self._task_text), (role, text)])
        return "{" + ",".join(f'"{name}":{written}' for name, written in entries) + "}"


def _task_text(task: object) -> str:
    if not isinstance(task, str) or not task:
        raise ConfigurationError(f"a task's name must be a text of at least one character, got {task!r}")
    try:
        return canonical(task)
    except InvalidPayloadError as error:
        raise ConfigurationError(f"the task name {task!r} cannot be used: {error}") from None


def _inspected(function: Callable[..., object]) -> Signature:
    if sys.version_info >= (3, 14):  # an annotation may name what is imported for type checkers only
        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def _signature(task: str, function: Callable[..., object], *, bound: bool) -> Signature:
    try:
        signature = _inspected(function)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"task {task!r}: {function!r} has no signature to compare calls by") from error
    parameters = list(signature.parameters.values())
    if not bound or (parameters and parameters[0].kind is Parameter.VAR_POSITIONAL):
        return signature
    if not parameters or parameters[0].kind in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD):
        raise ConfigurationError(f"task {task!r} is bound, but its function has no first parameter for the task itself")
    return signature.replace(parameters=parameters[1:])


def _listed(signature: Signature) -> str:
    """Return the parameters as a reader knows them, without defaults, which may be long or secret."""
    bare = (each.replace(default=Parameter.empty, annotation=Parameter.empty) for each in signature.parameters.values())
    return ", ".join(map(str, bare)) or "no arguments"


def _accepts_any(signature: Signature) -> bool:
    return any(parameter.kind is Parameter.VAR_KEYWORD for parameter in signature.parameters.values())


def _own_names(signature: Signature) -> list[str]:
    return [each.name for each in signature.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]


def _names(task: str, unique_on: object, signature: Signature) -> tuple[str, ...] | None:
    """Return the checked names of `unique_on`, None for all arguments; raises ConfigurationError."""
    if unique_on is None:
        return None
    if isinstance(unique_on, (str, bytes)) or not isinstance(unique_on, Sequence):
        raise ConfigurationError(
            f"task {task!r}: unique_on must be a list of names, a callable or None, got {unique_on!r}"
        )
    for index, name in enumerate(unique_on):
        _check_name(task, name, signature)
        if name in unique_on[:index]:
            raise ConfigurationError(f"task {task!r}: unique_on names {name!r} twice; remove one")
    return tuple(unique_on)


def _check_name(task: str, name: object, signature: Signature) -> None:
    if not isinstance(name, str) or not all(name.split(".")):
        raise ConfigurationError(f"task {task!r}: unique_on holds {name!r}, but takes names and paths like 'user.id'")
    root, own = name.split(".")[0], _own_names(signature)
    # The ** parameter's own name never reaches the arguments: it would silently make all calls equal.
    if root in own or (_accepts_any(signature) and root not in signature.parameters):
        return
    near = [f"; did you mean {match!r}?" for match in difflib.get_close_matches(root, own, n=1)]
    hint = "; name the keywords that it collects" if root in signature.parameters else "".join(near)
    raise ConfigurationError(
        f"task {task!r}: unique_on names {root!r}, which is no argument; the task takes {_listed(signature)}{hint}"
    )


def _choice(task: str, choose: Callable[..., object], signature: Signature) -> Callable[..., object]:
    """Return `choose` if it can be called with the task's arguments as keywords; raises ConfigurationError."""
    if inspect.iscoroutinefunction(choose):
        raise ConfigurationError(f"task {task!r}: unique_on is a coroutine function; make it a plain function")
    try:
        accepted = _inspected(choose)
    except ValueError:  # some builtins have no signature; the first call will tell
        return choose
    try:
        (accepted.bind_partial if _accepts_any(signature) else accepted.bind)(**dict.fromkeys(_own_names(signature)))
    except TypeError as error:
        raise ConfigurationError(
            f"task {task!r}: unique_on must take the task's arguments as keywords ({_listed(signature)}): {error}"
        ) from None
    return choose


def _bind(signature: Signature, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments by name; raises TypeError if they do not fit."""
    if isinstance(args, (str, bytes)):
        raise TypeError("the positional arguments must be a list, not a text")
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    found, extra = dict(bound.arguments), {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is Parameter.VAR_KEYWORD:
            extra = found.pop(name)
        elif parameter.kind is Parameter.VAR_POSITIONAL:
            found[name] = list(found[name])
    # def f(a, /, *rest, **more) may be called f(1, a=2, rest=3): one name would stand for two arguments.
    for name in sorted(found.keys() & extra.keys()):
        raise TypeError(f"{name!r} is a parameter and an extra keyword at once")
    return found | extra


def _member(value: object, segment: str) -> object:
    """Return what `segment` leads to: the mapping's key, else the attribute, else the list's item, else _MISSING."""
    if isinstance(value, Mapping):
        if segment in value:
            return value[segment]
        for item in (item for key, item in value.items() if _written(key) == segment):
            return item
    found = getattr(value, segment, _MISSING)
    # A method says nothing about the call: every dict without the key "copy" has the same one.
    if found is not _MISSING and not callable(found) and not segment.startswith("__"):
        return found
    if not isinstance(value, (list, tuple)) or not (segment.isascii() and segment.isdecimal()):
        return _MISSING
    try:
        return value[int(segment)]
    except (IndexError, ValueError):
        return _MISSING


def _written(key: object) -> str | None:
    try:
        return _key(key)
    except _RefusalError:
        return None


def _digest(text: str) -> str:
    return f"{ALGORITHM}-{hashlib.sha256(text.encode()).hexdigest()}"


class _RefusalError(Exception):
    """Why a value has no canonical text, as the rest of a sentence that begins with the value's path."""


@dataclass(frozen=True, slots=True)
class _Child:
    step: str | int
    value: object


class _Writer:
    """Writes one canonical text. It keeps its own stack, so that no value can exhaust the interpreter's."""

    def __init__(self, limits: Limits, root: str, owner: str = "") -> None:
        self._limits = limits
        self._room = limits.size
        self._root = root
        self._owner = owner
        self._steps: list[str | int] = []
        self._open: list[Iterator[str | _Child]] = []

    def write(self, value: object) -> str:
        """Return the canonical text of `value`; raises InvalidPayloadError. A writer writes once."""
        try:
            return "".join(self._texts(value))
        except _RefusalError as refusal:
            message = f"{self._owner}{_where(self._root, self._steps)} {refusal}"
            raise InvalidPayloadError(message) from refusal.__cause__

    def _texts(self, value: object) -> Iterator[str]:
        self._open.append(self._pieces(value))
        while self._open:
            piece = next(self._open[-1], None)
            if piece is None:
                self._open.pop()
                del self._steps[-1:]
            elif isinstance(piece, str):
                self._room -= self._required(len(piece.encode()))
                yield piece
            else:
                self._steps.append(piece.step)
                self._open.append(self._pieces(piece.value))

    def _pieces(self, value: object) -> Iterator[str | _Child]:
        plain = _plain(value)
        self._required(_least(plain))
        text = _scalar(plain)
        if text is not None:
            return iter((text,))
        if not isinstance(plain, (list, tuple, Mapping)):
            raise _RefusalError(_unknown(plain))
        if len(self._open) >= self._limits.depth:
            raise _RefusalError(f"is nested deeper than {self._limits.depth} levels, or contains itself; {_ADVICE}")
        return self._mapping(plain) if isinstance(plain, Mapping) else _list(plain)

    def _mapping(self, mapping: Mapping[object, object]) -> Iterator[str | _Child]:
        entries = self._entries(mapping)
        yield "{"
        for index, key in enumerate(sorted(entries)):
            yield ("," if index else "") + _quoted(_escaped(key)) + ":"
            yield _Child(key, entries[key])
        yield "}"

    def _entries(self, mapping: Mapping[object, object]) -> dict[str, object]:
        entries: dict[str, object] = {}
        for key, value in mapping.items():
            self._required(_least(key))
            text = _key(key)
            if text in entries:
                raise _RefusalError(f"has two keys that JSON writes as {_short(repr(text))}; keep one of them")
            entries[text] = value
        # kombu's JSON takes such a mapping for one of its own tagged values and replaces or rejects it on arrival.
        if entries.keys() == {"__type__", "__value__"}:
            raise _RefusalError("has only the keys '__type__' and '__value__', reserved by Celery's JSON; rename one")
        return entries

    def _required(self, size: int) -> int:
        if size > self._room:
            raise _RefusalError(f"takes the canonical text past {self._limits.size} bytes; {_ADVICE}")
        return size


def _list(items: Sequence[object]) -> Iterator[str | _Child]:
    yield "["
    for index, item in enumerate(items):
        if index:
            yield ","
        yield _Child(index, item)
    yield "]"


def _least(value: object) -> int:
    """Return a lower bound of the text's size that costs nothing, so that what is far too large is never read."""
    if isinstance(value, memoryview):
        return value.nbytes
    return len(value) if isinstance(value, (str, bytes, bytearray, list, tuple, Mapping)) else 0


def _plain(value: object) -> object:
    """Return `value` out of its wrappers (Enum, dataclass, model, `__json__`); raises _RefusalError if that fails."""
    for _ in range(_WRAPPERS):
        try:
            inner = _unwrapped(value)
        except Exception as error:  # the user's code runs here and may raise anything
            raise _RefusalError(f"is of type {_kind(value)} and cannot be read ({_kind(error)}); {_ADVICE}") from error
        if inner is value:
            return value
        value = inner
    raise _RefusalError(f"is of type {_kind(value)} and wraps itself; {_ADVICE}")


def _unwrapped(value: object) -> object:
    if isinstance(value, (str, int, float, list, tuple, dict, type(None))):
        return value
    kind = type(value)
    if hasattr(kind, "__json__"):  # kombu's JSON asks for it before it looks at the type
        return kind.__json__(value)
    return value if isinstance(value, _TAGGED) else _content(value, kind)


def _content(value: object, kind: type[Any]) -> object:
    if isinstance(value, Enum):
        return value.value
    if hasattr(kind, "model_dump"):
        return kind.model_dump(value, mode="python")
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    return value


def _scalar(value: object) -> str | None:
    """Return the text of a value that is no container, None for a container or an unknown type."""
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
    raise _RefusalError("is an integer of more than 4300 digits, or than Python is set to write; pass it as bytes")


def _finite(text: str, *, finite: bool) -> str:
    if finite:
        return text
    raise _RefusalError(f"is {text}, but only finite numbers have an identity; pass None or a text")


def _decimal(value: Decimal) -> str:
    # The thread's decimal context decides between 1E+5 and 1e+5.
    return _finite(Decimal.__str__(value).upper(), finite=Decimal.is_finite(value))


# The types' own methods, not those of a subclass: so does kombu's JSON. datetime stands before date, its base.
_TAGS: Final[tuple[tuple[Any, str, Callable[[Any], str]], ...]] = (
    (datetime, "datetime", datetime.isoformat),
    (date, "date", date.isoformat),
    (time, "time", time.isoformat),
    (timedelta, "timedelta", lambda value: str(value // timedelta(microseconds=1))),
    (UUID, "uuid", UUID.__str__),
    (Decimal, "decimal", _decimal),
    ((bytes, bytearray, memoryview), "bytes", lambda value: base64.b64encode(memoryview(value).tobytes()).decode()),
)
_TAGGED: Final = tuple(kinds for kinds, _, _ in _TAGS)


def _key(key: object) -> str:
    """Return the text that JSON writes for a mapping's key; raises _RefusalError if it has none."""
    if isinstance(key, str):
        return _checked(key, "has a key with")
    text = _scalar(key) if key is None or isinstance(key, (int, float)) else None
    if text is None:
        raise _RefusalError(f"has a key of type {_kind(key)}; use text keys, or pass a list of pairs")
    return text


def _checked(value: str, verb: str) -> str:
    text = str.__str__(value)
    if "\0" in text:
        raise _RefusalError(f"{verb} a NUL character, which stores cannot keep; remove it, or pass bytes")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _RefusalError(f"{verb} a lone surrogate, which UTF-8 cannot hold; remove it, or pass bytes") from None
    return text


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(key: str) -> str:
    return f"${key}" if key.startswith("$") else key


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _unknown(value: object) -> str:
    if isinstance(value, (set, frozenset)):
        return f"is of type {_kind(value)}, which has no order and no JSON; pass a sorted list instead"
    return f"is of type {_kind(value)}, which has no canonical text; {_ADVICE}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _where(root: str, steps: Sequence[str | int]) -> str:
    path = root
    for step in steps:
        if isinstance(step, int) or (path and not step.isidentifier()):
            path += f"[{step!r}]"
        else:
            path += f".{step}" if path else step
    return _short(path) or "the call"
