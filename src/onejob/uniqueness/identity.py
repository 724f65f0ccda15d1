"""What makes two calls of one task equal: the canonical text of their arguments, and its hash.

The text says what a worker receives: values that look alike once Celery's JSON has carried them share one text, and
values that differ there never do. docs/identity.md lists the rules type by type.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Final, TypeAlias

from onejob.errors import ConfigurationError, InvalidArgumentsError, InvalidPayloadError
from onejob.uniqueness.canonical_json import Limits, canonical, key_text, kind_of

if sys.version_info >= (3, 14):
    from annotationlib import Format

ALGORITHM: Final = "v1"

UniqueOn: TypeAlias = Sequence[str] | Callable[..., object] | None

_MISSING: Final = object()
_DEFAULT_LIMITS: Final = Limits()


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

    @property
    def signature(self) -> Signature:
        """What the task can be called with, without a first parameter for the task itself."""
        return self._signature

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

    def both(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[str, str]:
        """Return `identity` and `fingerprint` of a call; raises what they raise."""
        identity = self.identity(args, kwargs)
        whole = self._choose is None and self._names is None
        return identity, identity if whole else self.fingerprint(args, kwargs)

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
                reason = "the argument is absent" if holder is _MISSING else f"{kind_of(holder)} has no {segment!r}"
                raise InvalidPayloadError(
                    f"task {self._task!r}: unique_on names {path!r}, which this call does not have ({reason}); "
                    "pass it, or let unique_on be a callable that copes without it"
                )
        return value

    def _text(self, role: str, value: object, root: str = "") -> str:
        text = canonical(value, self._limits, root=root, owner=f"task {self._task!r}: ")
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
        for item in (item for key, item in value.items() if key_text(key) == segment):
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


def _digest(text: str) -> str:
    return f"{ALGORITHM}-{hashlib.sha256(text.encode()).hexdigest()}"
