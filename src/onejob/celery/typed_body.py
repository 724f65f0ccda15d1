"""The body of a `typed` task: JSON in its messages and results, dataclasses and models in the code."""

from __future__ import annotations

import inspect
from functools import cached_property
from inspect import Parameter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from onejob.celery.typed_values import Codec, UnfitValueError, codec_of, hints_of
from onejob.errors import InvalidArgumentsError, InvalidPayloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from inspect import Signature

POSITIONAL = frozenset({Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD})
NAMED = frozenset({Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY})
_result_codecs: WeakKeyDictionary[Any, Codec | None] = WeakKeyDictionary()


class TypedBody:
    """Converts the arguments and the result of one task. Its annotations are evaluated at the first use."""

    def __init__(self, task: str, function: Any, signature: Signature) -> None:
        self._task = task
        self._function = inspect.unwrap(function)
        self._signature = signature

    @cached_property
    def _codecs(self) -> dict[str, Codec]:
        """The parameters that have models in them."""
        hints = hints_of(self._function)
        found = {name: codec_of(hints[name]) for name in self._signature.parameters if name in hints}
        return {name: codec for name, codec in found.items() if codec is not None}

    @property
    def converts(self) -> bool:
        """Whether a parameter has models in it."""
        return bool(self._codecs)

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        """The defaults that may be models, as JSON."""
        parameters = self._signature.parameters
        defaults = {name: parameters[name].default for name in self._codecs if parameters[name].kind in NAMED}
        return {
            name: self._codecs[name].dump(default, name)
            for name, default in defaults.items()
            if default is not Parameter.empty and default is not None
        }

    @cached_property
    def _positional(self) -> list[str]:
        return [name for name, each in self._signature.parameters.items() if each.kind in POSITIONAL]

    @cached_property
    def _result(self) -> Codec | None:
        hint = hints_of(self._function).get("return")
        return None if hint is None else codec_of(hint)

    def dump_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments as JSON, with those defaults that are models. Raises `InvalidArgumentsError`."""
        given, named = self._convert("dump", args, kwargs)
        passed = self._positional[: len(given)]
        return given, {name: value for name, value in self._defaults.items() if name not in passed} | named

    def build_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the body for those of a message. Raises `InvalidArgumentsError`."""
        return self._convert("build", args, kwargs) if self._codecs else (tuple(args), dict(kwargs))

    def _convert(
        self, action: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        parameters = self._signature.parameters
        rest = [name for name, each in parameters.items() if each.kind is Parameter.VAR_POSITIONAL] or [""]
        more = [name for name, each in parameters.items() if each.kind is Parameter.VAR_KEYWORD] or [""]
        names = self._positional + rest * len(args)
        try:
            given = tuple(self._convert_one(action, name, value) for name, value in zip(names, args, strict=False))
            named = {
                name: self._convert_one(action, name if name in parameters else more[0], value)
                for name, value in kwargs.items()
            }
        except UnfitValueError as error:
            msg = f"task {self._task!r} does not accept this call: {error}"
            raise InvalidArgumentsError(msg) from None
        return given, named

    def _convert_one(self, action: str, name: str, value: Any) -> Any:
        codec = self._codecs.get(name)
        return value if codec is None else getattr(codec, action)(value, name)

    def dump_result(self, value: Any) -> Any:
        """Return the result of the body as JSON. Raises `InvalidPayloadError`."""
        return value if self._result is None else _dump(self._result, value, f"the result of task {self._task!r}")

    def build_result(self, value: Any) -> Any:
        """Return what the body returned for the result of a job. Raises `InvalidPayloadError`."""
        return value if self._result is None else _build(self._result, value, f"the result of task {self._task!r}")

    def wrap(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """Return a body that takes the arguments of a message, and returns its result as JSON."""
        if not self._codecs and self._result is None:
            return body

        def call(*args: Any, **kwargs: Any) -> Any:
            given, named = self.build_arguments(args, kwargs)
            return self.dump_result(body(*given, **named))

        return call


def dump_step(function: Any, value: Any, name: str) -> Any:
    """Return the value of a step as JSON, if its callable says to return a model. Raises `InvalidPayloadError`."""
    codec = _result_codec(function)
    return value if codec is None else _dump(codec, value, f"the value of step {name!r}")


def build_step(function: Any, value: Any, name: str) -> Any:
    """Return the value of a step for what is stored. Raises `InvalidPayloadError`."""
    codec = _result_codec(function)
    return value if codec is None else _build(codec, value, f"the value of step {name!r}")


def _result_codec(function: Any) -> Codec | None:
    """Return the codec of the return annotation of a callable."""
    function = inspect.unwrap(getattr(function, "func", function))  # of a `functools.partial`
    if not getattr(function, "__annotations__", {}).get("return"):
        return None
    try:
        return _result_codecs[function]
    except (KeyError, TypeError):
        codec = codec_of(hints_of(function).get("return"))
    try:
        _result_codecs[function] = codec
    except TypeError:  # a callable without weak references
        return codec
    return codec


def _dump(codec: Codec, value: Any, what: str) -> Any:
    try:
        return codec.dump(value, "result")
    except UnfitValueError as error:
        msg = f"{what} does not fit its annotation: {error}"
        raise InvalidPayloadError(msg) from error


def _build(codec: Codec, value: Any, what: str) -> Any:
    try:
        return codec.build(value, "result")
    except UnfitValueError as error:
        msg = f"{what} does not fit its annotation: {error}"
        raise InvalidPayloadError(msg) from error
