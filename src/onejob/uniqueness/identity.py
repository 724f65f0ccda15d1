"""The identity of a call: a hash of the task and the canonical text of its arguments.

The text represents what a worker receives: values that are equal after Celery's JSON have the same text, and values
that differ have different texts. docs/concepts/identity.md lists the rules type by type.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Final, Self, TypeAlias

from onejob.errors import ConfigurationError, InvalidArgumentsError, InvalidPayloadError
from onejob.jobs.text_limits import TextLimits
from onejob.uniqueness.canonical_json import canonical, digest, key_text, kind_of

if sys.version_info >= (3, 14):
    from annotationlib import Format

UniqueOn: TypeAlias = Sequence[str] | Callable[..., object] | None

_MISSING: Final = object()
_HEADER = re.compile(r"""headers\[(["'])(?P<name>[^"'\[\]]+)\1\]""")
"""The notation of a message's header in `unique_on`: `headers["tenant"]`."""
_NO_HEADERS: Final[Mapping[str, object]] = {}
_DEFAULT_LIMITS: Final = TextLimits()


class Identifier:
    """Computes the identity and the fingerprint of the calls of one task."""

    def __init__(
        self, task: str, function: Callable[..., object], unique_on: UniqueOn = None, *, bound: bool = False,
        limits: TextLimits = _DEFAULT_LIMITS, checked: bool = True,
    ) -> None:  # fmt: skip
        """Read the task's signature; `unique_on` selects arguments and headers, `bound` drops the first parameter.

        Unless `checked`, a call that does not match the signature is no error: its identity is that of all its
        arguments.

        Raises ConfigurationError if the name is not a string, the function has no signature, or `unique_on` does not
        match the signature.
        """
        self._task = task
        self._task_text = _task_text(task)
        self._owner = f"task {task!r}: "
        self._limits = limits
        self._checked = checked
        self.signature = _signature(task, function, bound=bound)
        """The signature of the task's calls, without the parameter for a bound task."""
        self._named = _NamedParameters.of(self.signature)
        self._choose = _check_callable(task, unique_on, self.signature) if callable(unique_on) else None
        self._names = None if self._choose else _check_names(task, unique_on, self.signature)
        self.has_headers = any(map(_HEADER.fullmatch, self._names or ()))
        """Whether `unique_on` names a header of the message."""

    def arguments(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Return all arguments of the call by name, including defaults; entries of `**kwargs` under their own names.

        Raises InvalidArgumentsError if the arguments do not match the task's signature.
        """
        try:
            return _bind(self.signature, args, kwargs)
        except TypeError as error:
            reason = _find_unknown(self.signature, kwargs) or str(error)
            message = f"task {self._task!r} does not accept this call: {reason}; it takes {_params(self.signature)}"
            raise InvalidArgumentsError(message) from None

    def check_selector(self, option: str, selector: str | Callable[..., object]) -> None:
        """Raise `ConfigurationError` for a path of an option, or a function, that does not match the arguments."""
        if callable(selector):
            _check_callable(self._task, selector, self.signature, option)
        else:
            _check_name(self._task, selector, self.signature, option)

    def describe(
        self, args: Sequence[object], kwargs: Mapping[str, object], scope: str | None = None,
        headers: Mapping[str, object] = _NO_HEADERS,
    ) -> str:  # fmt: skip
        """Return the canonical text that `identity` hashes: the task, the values of `unique_on`, and the scope if any.

        Calls in different scopes are never equal. A header that a call does not have counts as None.

        Raises InvalidArgumentsError, InvalidPayloadError, and the errors of a callable `unique_on`.
        """
        return self._frame(self._content(self._arguments_or_none(args, kwargs), args, kwargs, headers), scope)

    def identity(
        self, args: Sequence[object], kwargs: Mapping[str, object], scope: str | None = None,
        headers: Mapping[str, object] = _NO_HEADERS,
    ) -> str:  # fmt: skip
        """Return `v1-<sha256>`, the same for equal calls in one scope; raises like `describe`."""
        return digest(self.describe(args, kwargs, scope, headers))

    def both(
        self, args: Sequence[object], kwargs: Mapping[str, object], scope: str | None = None,
        headers: Mapping[str, object] = _NO_HEADERS,
    ) -> tuple[str, str, str]:  # fmt: skip
        """Return the identity of a call, its fingerprint, and the text of `describe`; no value is written twice.

        The fingerprint is the hash of all arguments, without `unique_on` and scope.
        Raises like `describe`, and InvalidPayloadError if any argument has no canonical text.
        """
        arguments = self._arguments_or_none(args, kwargs)
        content = self._content(arguments, args, kwargs, headers)
        described = self._frame(content, scope)
        identity = digest(described)
        if arguments is not None and (self._names is not None or self._choose is not None):
            content = self._content(arguments, args, kwargs, headers, selects=False)
        elif scope is None:
            return identity, identity, described
        return identity, digest(self._frame(content)), described

    def _content(
        self, arguments: Mapping[str, object] | None, args: Sequence[object], kwargs: Mapping[str, object],
        headers: Mapping[str, object], *, selects: bool = True,
    ) -> tuple[str, str]:  # fmt: skip
        """Return the name and the canonical text of the values that `unique_on` selects, or of all arguments."""
        if arguments is None:
            return "unique", self._write({"misfit": [list(args), dict(kwargs)]}, "the call")
        if selects and self._choose is not None:
            return "unique", self._write(self._choose(**arguments), "the result of unique_on")
        if selects and self._names is not None:
            arguments = self._select(self._names, arguments, headers)
        return "arguments", canonical(arguments, self._limits, root="", owner=self._owner)

    def _arguments_or_none(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object] | None:
        """Return the arguments by name; None if they do not match the signature and calls are not checked."""
        if self._named is not None and (arguments := self._named.bind(args, kwargs)) is not None:
            return arguments
        try:
            return self.arguments(args, kwargs)
        except InvalidArgumentsError:
            if self._checked:
                raise
            return None

    def _select(
        self, names: Sequence[str], arguments: Mapping[str, object], headers: Mapping[str, object]
    ) -> dict[str, object]:  # fmt: skip
        selected = {}
        for name in names:
            if self.has_headers and (header := _HEADER.fullmatch(name)) is not None:
                selected[name] = headers.get(header["name"])
                continue
            root, *segments = name.split(".")
            # Only a top-level keyword may be absent: with a missing path, unrelated calls would become equal.
            if segments:
                selected[name] = self._resolve_path(name, arguments.get(root, _MISSING), segments)
            elif root in arguments:
                selected[name] = arguments[root]
        return selected

    def _resolve_path(self, path: str, value: object, segments: Sequence[str]) -> object:
        for segment in segments:
            holder, value = value, _MISSING if value is _MISSING else _get_member(value, segment)
            if value is _MISSING:
                has = f", but {', '.join(map(repr, [*holder][:5]))}" if isinstance(holder, dict) and holder else ""
                reason = (
                    "the argument is absent" if holder is _MISSING else f"{kind_of(holder)} has no {segment!r}{has}"
                )
                raise InvalidPayloadError(
                    f"task {self._task!r}: unique_on has {path!r}, which is missing in this call ({reason}); "
                    "pass it, or use a callable for unique_on that handles its absence"
                )
        return value

    def _write(self, value: object, root: str = "") -> str:
        return canonical(value, self._limits, root=root, owner=self._owner)

    def _frame(self, content: tuple[str, str], scope: str | None = None) -> str:
        """Return the canonical text of a call; its names are sorted."""
        role, text = content
        scoped = "" if scope is None else f'"scope":{canonical(scope)},'
        if role == "arguments":
            return f'{{"arguments":{text},{scoped}"task":{self._task_text}}}'
        return f'{{{scoped}"task":{self._task_text},"unique":{text}}}'


def _task_text(task: object) -> str:
    if not isinstance(task, str) or not task:
        raise ConfigurationError(f"a task's name must be a non-empty string, got {task!r}")
    try:
        return canonical(task)
    except InvalidPayloadError as error:
        raise ConfigurationError(f"the task name {task!r} cannot be used: {error}") from None


def _inspect_signature(function: Callable[..., object]) -> Signature:
    """Return the signature of a function, or of the function it wraps; a wrapped class has other arguments."""
    follows = not isinstance(inspect.unwrap(function), type)
    if sys.version_info >= (3, 14):  # annotations may refer to imports under TYPE_CHECKING
        return inspect.signature(function, follow_wrapped=follows, annotation_format=Format.FORWARDREF)
    return inspect.signature(function, follow_wrapped=follows)


def _signature(task: str, function: Callable[..., object], *, bound: bool) -> Signature:
    try:
        signature = _inspect_signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"task {task!r}: {function!r} has no signature") from error
    parameters = list(signature.parameters.values())
    if not bound or (parameters and parameters[0].kind is Parameter.VAR_POSITIONAL):
        return signature
    if not parameters or parameters[0].kind in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD):
        raise ConfigurationError(f"task {task!r} is bound, but its function has no first parameter for the task itself")
    return signature.replace(parameters=parameters[1:])


def _params(signature: Signature) -> str:
    """Return a signature's parameters as text for a message, without defaults, which may be long or secret."""
    bare = (each.replace(default=Parameter.empty, annotation=Parameter.empty) for each in signature.parameters.values())
    return ", ".join(map(str, bare)) or "no arguments"


def _find_unknown(signature: Signature, kwargs: Mapping[str, object]) -> str:
    """Return a message about the first keyword argument that a signature does not have; "" if it has all of them."""
    names = kwargs if isinstance(kwargs, Mapping) and not _accepts_any(signature) else ()
    unknown = [name for name in names if isinstance(name, str) and name not in signature.parameters]
    if not unknown:
        return ""
    similar = difflib.get_close_matches(unknown[0], _argument_names(signature), n=1)
    return f"it has no argument {unknown[0]!r}{f': did you mean {similar[0]}?' if similar else ''}"


def _accepts_any(signature: Signature) -> bool:
    return any(parameter.kind is Parameter.VAR_KEYWORD for parameter in signature.parameters.values())


def _argument_names(signature: Signature) -> list[str]:
    return [each.name for each in signature.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]


def _check_names(task: str, unique_on: object, signature: Signature) -> tuple[str, ...] | None:
    """Return the validated names of `unique_on`, None for all arguments; raises ConfigurationError."""
    if unique_on is None:
        return None
    if isinstance(unique_on, (str, bytes)) or not isinstance(unique_on, Sequence):
        raise ConfigurationError(
            f"task {task!r}: unique_on must be a list of names, a callable or None, got {unique_on!r}"
        )
    for index, name in enumerate(unique_on):
        _check_name(task, name, signature)
        if name in unique_on[:index]:
            raise ConfigurationError(f"task {task!r}: unique_on has {name!r} twice; remove one")
    return tuple(unique_on)


def _check_name(task: str, name: object, signature: Signature, option: str = "unique_on") -> None:
    if isinstance(name, str) and _HEADER.fullmatch(name) is not None:
        return
    if not isinstance(name, str) or not all(name.split(".")) or "[" in name:
        raise ConfigurationError(
            f"task {task!r}: {option} has {name!r}, but accepts only names, paths like 'user.id', and headers of the "
            "message like 'headers[\"tenant\"]'"
        )
    root, own = name.split(".")[0], _argument_names(signature)
    # The name of the ** parameter is never an argument name: with it, all calls would silently be equal.
    if root in own or (_accepts_any(signature) and root not in signature.parameters):
        return
    near = [f"; did you mean {match!r}?" for match in difflib.get_close_matches(root, own, n=1)]
    hint = "; use the names of the keywords that it collects" if root in signature.parameters else "".join(near)
    raise ConfigurationError(
        f"task {task!r}: {option} has {root!r}, which is no argument; the task takes {_params(signature)}{hint}"
    )


def _check_callable(
    task: str, choose: Callable[..., object], signature: Signature, option: str = "unique_on"
) -> Callable[..., object]:
    """Return `choose` if it accepts the task's arguments as keywords; raises ConfigurationError."""
    if inspect.iscoroutinefunction(choose):
        raise ConfigurationError(f"task {task!r}: {option} is a coroutine function; make it a plain function")
    try:
        accepted = _inspect_signature(choose)
    except ValueError:  # some builtins have no signature: an error shows in the first call
        return choose
    try:
        (accepted.bind_partial if _accepts_any(signature) else accepted.bind)(
            **dict.fromkeys(_argument_names(signature))
        )
    except TypeError as error:
        raise ConfigurationError(
            f"task {task!r}: {option} must accept the task's arguments as keywords ({_params(signature)}): {error}"
        ) from None
    return choose


def _bind(signature: Signature, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments by name; raises TypeError if they do not match the signature."""
    if isinstance(args, (str, bytes)):
        raise TypeError("the positional arguments must be a list, not a string")
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    arguments, extra = dict(bound.arguments), {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is Parameter.VAR_KEYWORD:
            extra = arguments.pop(name)
        elif parameter.kind is Parameter.VAR_POSITIONAL:
            arguments[name] = list(arguments[name])
    # def f(a, /, *rest, **more) accepts f(1, a=2, rest=3): one name would refer to two arguments.
    for name in sorted(arguments.keys() & extra.keys()):
        raise TypeError(f"{name!r} is a parameter and an extra keyword at once")
    return arguments | extra


@dataclass(frozen=True, slots=True)
class _NamedParameters:
    """The parameters of a signature that takes all of them by position or by name, and their defaults."""

    names: dict[str, None]
    defaults: dict[str, object]

    @classmethod
    def of(cls, signature: Signature) -> Self | None:
        parameters = signature.parameters.values()
        if any(each.kind is not Parameter.POSITIONAL_OR_KEYWORD for each in parameters):
            return None
        defaults = {each.name: each.default for each in parameters if each.default is not Parameter.empty}
        return cls(dict.fromkeys(each.name for each in parameters), defaults)

    def bind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object] | None:
        """Return the arguments by name, many times faster than `_bind`; None for arguments that do not match."""
        given = dict(zip(self.names, args, strict=False))
        if not kwargs and len(args) == len(self.names) and isinstance(args, (tuple, list)):
            return given
        if len(args) > len(self.names) or isinstance(args, (str, bytes)) or not given.keys().isdisjoint(kwargs):
            return None
        arguments = {**self.defaults, **given, **kwargs}
        return arguments if arguments.keys() == self.names.keys() else None


def value_at(arguments: Mapping[str, object], path: str) -> object:
    """Return the value at a path into arguments by name, as `unique_on` reads it. Raises `KeyError` without one."""
    value: object = arguments
    for segment in path.split("."):
        value = _get_member(value, segment)
        if value is _MISSING:
            raise KeyError(path)
    return value


def _get_member(value: object, segment: str) -> object:
    """Return the mapping's value, else the attribute, else the list's item for a path segment, else _MISSING."""
    if isinstance(value, Mapping):
        if segment in value:
            return value[segment]
        for item in (item for key, item in value.items() if key_text(key) == segment):
            return item
    attribute = getattr(value, segment, _MISSING)
    # Methods are not data: `dict.copy` is the same for every dict without the key "copy".
    if attribute is not _MISSING and not callable(attribute) and not segment.startswith("__"):
        return attribute
    if not isinstance(value, (list, tuple)) or not (segment.isascii() and segment.isdecimal()):
        return _MISSING
    try:
        return value[int(segment)]
    except (IndexError, ValueError):
        return _MISSING
