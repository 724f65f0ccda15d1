"""Converts the values of `typed` tasks: dataclasses and models in the code, JSON in messages, results and steps.

Pydantic converts the values whose annotations have a dataclass or a model in them. All others are left alone, so a task
without models needs no pydantic.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from inspect import Parameter, Signature
from typing import Any, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from onejob.errors import ConfigurationError, InvalidArgumentsError, InvalidPayloadError

POSITIONAL = frozenset({Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD})
NAMED = frozenset({Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY})
_result_codecs: WeakKeyDictionary[Any, Codec | None] = WeakKeyDictionary()


class UnfitValueError(ValueError):
    """A value does not fit its annotation. The message names the field."""


class Codec:
    """Writes and reads the values of one annotation: models by their own configuration, dataclasses strictly."""

    def __init__(self, annotation: Any) -> None:
        _import_pydantic(f"a value of {annotation}")
        from pydantic import ConfigDict, PydanticUserError, TypeAdapter

        strict = ConfigDict(strict=True, extra="forbid")
        try:
            # A configuration is permitted for what only contains a dataclass. Models in it keep their own.
            self._adapter: Any = TypeAdapter(tuple[annotation], config=strict)
        except (PydanticUserError, NameError) as error:
            msg = f"{annotation} cannot be converted from JSON: {str(error).splitlines()[0]}"
            raise ConfigurationError(msg) from error

    def dump(self, value: Any, where: str) -> Any:
        """Return the JSON value of an object, or of JSON that fits; `where` names it. Raises `UnfitValueError`."""
        from pydantic_core import from_json

        built = self.build(value, where)
        if _is_changed(value, built):
            msg = f"{where}: JSON does not keep this value, so the run would get another one: {built!r:.200}"
            raise UnfitValueError(msg)
        return from_json(_to_json(built, where))  # which also validates the values of an iterable

    def build(self, value: Any, where: str) -> Any:
        """Return the object of a JSON value, or of an object. Raises `UnfitValueError`."""
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(_to_json((value,), where))[0]
        except ValidationError as error:
            first, *others = error.errors(include_url=False, include_context=False, include_input=False)
            field = ".".join(map(str, (where, *first["loc"][1:])))
            more = f" (and {len(others)} more)" if others else ""
            raise UnfitValueError(f"{field}: {first['msg']}{more}") from None


def _to_json(value: Any, where: str) -> bytes:
    """Return a value as JSON. Raises `UnfitValueError` for a value that JSON cannot have; `where` names it."""
    from pydantic_core import PydanticSerializationError, to_json

    try:
        return to_json(_without_dataclasses(value), round_trip=True)
    except PydanticSerializationError as error:
        raise UnfitValueError(f"{where}: {error}") from None


def _is_changed(value: Any, built: Any) -> bool:
    """Return whether an object differs from the object built of its JSON: masked secrets, excluded fields, subclasses.

    A change of the type alone, of a tuple to a list or of an object to JSON, is no difference.
    """
    if isinstance(value, list | tuple) and isinstance(built, list | tuple):
        return len(value) != len(built) or any(map(_is_changed, value, built))
    if isinstance(value, dict) and isinstance(built, dict):
        return any(_is_changed(each, built.get(key)) for key, each in value.items())
    if dataclasses.is_dataclass(value):
        names = [each.name for each in dataclasses.fields(value) if each.init or each.compare]
        return any(_is_changed(getattr(value, name), getattr(built, name, None)) for name in names)
    is_model = hasattr(value, "__pydantic_fields__")
    return (is_model or type(value) is type(built)) and bool(value != built)


def _without_dataclasses(value: Any) -> Any:
    """Return a value with its dataclasses as dicts of the arguments of their constructors."""
    if dataclasses.is_dataclass(value) and not hasattr(value, "__pydantic_fields__"):
        fields = [each.name for each in dataclasses.fields(value) if each.init]
        return {name: _without_dataclasses(getattr(value, name)) for name in fields}
    if isinstance(value, list | tuple | set | frozenset):
        return [_without_dataclasses(each) for each in value]
    return {key: _without_dataclasses(each) for key, each in value.items()} if isinstance(value, dict) else value


def codec_of(annotation: Any) -> Codec | None:
    """Return the codec for the values of an annotation; None if it contains no dataclass and no model."""
    return Codec(annotation) if _has_model(annotation) else None


def _has_model(annotation: Any, outer: tuple[Any, ...] = ()) -> bool:
    if any(annotation is each for each in outer):  # a recursive alias
        return False
    if dataclasses.is_dataclass(annotation) or hasattr(annotation, "__pydantic_fields__"):
        return True
    parts: Iterable[Any] = (get_origin(annotation), *get_args(annotation))
    parts = (*parts, *(getattr(annotation, name, None) for name in ("__value__", "__supertype__")))  # of an alias
    if hasattr(annotation, "__total__"):  # a `TypedDict`, also of `typing_extensions`
        parts = hints_of(annotation).values()
    return any(_has_model(each, (*outer, annotation)) for each in parts if each is not None)


def hints_of(function: Any) -> dict[str, Any]:
    """Return the annotations of a function, without annotations that cannot be evaluated."""
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:  # noqa: BLE001 - an annotation may be any expression
        annotations = getattr(function, "__annotations__", {})
    hints: dict[str, Any] = {}
    for name, annotation in annotations.items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= get_type_hints(alone, getattr(function, "__globals__", {}), include_extras=True)
        except Exception:  # noqa: BLE001, S112 - as above
            continue
    return hints


def check_pydantic(task: str, function: Any) -> None:
    """Raise `ConfigurationError` if a body takes or returns models, and pydantic is not installed."""
    if any(_has_model(hint) for hint in hints_of(inspect.unwrap(function)).values()):
        _import_pydantic(f"task {task}")


def _import_pydantic(user: str) -> None:
    try:
        import_module("pydantic")
    except ImportError as error:
        raise ConfigurationError(
            f"{user} has dataclasses in its annotations, which pydantic converts: pip install pydantic, or typed=False"
        ) from error


class TypedBody:
    """Converts arguments and results of one task. Raises `ConfigurationError` if pydantic is needed and missing."""

    def __init__(self, task: str, function: Any, signature: Signature) -> None:
        check_pydantic(task, function)
        self._task = task
        self._function = inspect.unwrap(function)
        self._parameters = signature.parameters

    @cached_property
    def codecs(self) -> dict[str, Codec]:
        """The codecs of the parameters that have models in them, by name."""
        hints = hints_of(self._function).items()
        return {name: Codec(hint) for name, hint in hints if name in self._parameters and _has_model(hint)}

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        """The defaults that may be models, as JSON."""
        defaults = {
            name: parameter.default
            for name, parameter in self._parameters.items()
            if name in self.codecs and parameter.kind in NAMED and parameter.default not in (Parameter.empty, None)
        }
        return {name: self.codecs[name].dump(default, name) for name, default in defaults.items()}

    @cached_property
    def _positional(self) -> list[str]:
        return [name for name, each in self._parameters.items() if each.kind in POSITIONAL]

    @cached_property
    def _result(self) -> Codec | None:
        return codec_of(hints_of(self._function).get("return"))

    def dump_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments as JSON, and the defaults that are models. Raises `InvalidArgumentsError`."""
        given, named = self._convert(Codec.dump, args, kwargs)
        passed = self._positional[: len(given)]
        return given, {name: value for name, value in self._defaults.items() if name not in passed} | named

    def build_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the body, built from the arguments of a message. Raises `InvalidArgumentsError`."""
        return self._convert(Codec.build, args, kwargs) if self.codecs else (tuple(args), dict(kwargs))

    def _convert(
        self, action: Callable[[Codec, Any, str], Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        names_of = {each.kind: name for name, each in self._parameters.items()}
        rest, more = names_of.get(Parameter.VAR_POSITIONAL, ""), names_of.get(Parameter.VAR_KEYWORD, "")

        def convert(name: str, value: Any) -> Any:
            codec = self.codecs.get(name)
            return value if codec is None else action(codec, value, name)

        try:
            names = self._positional + [rest] * len(args)
            given = tuple(convert(name, value) for name, value in zip(names, args, strict=False))
            named = {name: convert(name if name in self._parameters else more, each) for name, each in kwargs.items()}
        except UnfitValueError as error:
            raise InvalidArgumentsError(f"task {self._task!r} does not accept this call: {error}") from None
        return given, named

    def dump_result(self, value: Any) -> Any:
        """Return the result of the body as JSON. Raises `InvalidPayloadError`."""
        return convert_result(Codec.dump, self._result, value, f"the result of task {self._task!r}")

    def build_result(self, value: Any) -> Any:
        """Return the value that the body returned, built from the result of a job. Raises `InvalidPayloadError`."""
        return convert_result(Codec.build, self._result, value, f"the result of task {self._task!r}")

    def wrap(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Return a body that takes the arguments of a message, and returns its result as JSON."""
        if not self.codecs and self._result is None:
            return body

        def call(*args: Any, **kwargs: Any) -> Any:
            given, named = self.build_arguments(args, kwargs)
            return self.dump_result(body(*given, **named))

        return call


def result_codec(function: Any) -> Codec | None:
    """Return the codec of the return annotation of a callable."""
    function = inspect.unwrap(getattr(function, "func", function))  # of a `functools.partial`
    if not getattr(function, "__annotations__", {}).get("return"):
        return None
    try:
        if function not in _result_codecs:
            _result_codecs[function] = codec_of(hints_of(function).get("return"))
        return _result_codecs[function]
    except TypeError:  # a callable without a hash or without weak references
        return codec_of(hints_of(function).get("return"))


def convert_result(action: Callable[[Codec, Any, str], Any], codec: Codec | None, value: Any, what: str) -> Any:
    """Return a result or the value of a step as JSON, or built of it. Raises `InvalidPayloadError`, naming `what`."""
    if codec is None:
        return value
    try:
        return action(codec, value, "result")
    except UnfitValueError as error:
        raise InvalidPayloadError(f"{what} does not fit its annotation: {error}") from error
