"""Task classes as applications write them: a context around the body, by a `__call__` that calls this or that."""
# mypy: allow-subclassing-any

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import celery
from celery.exceptions import Reject

import onejob

depth: ContextVar[int] = ContextVar("depth", default=0)
"""How many contexts are around the body: as an application's context of Flask."""


@contextmanager
def context() -> Iterator[None]:
    token = depth.set(depth.get() + 1)
    try:
        yield
    finally:
        depth.reset(token)


Plain: Any = celery.Task
Ours: Any = onejob.Task


class Flask(Plain):
    """As Flask's documentation shows it: the context, and in it `self.run`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with context():
            return self.run(*args, **kwargs)


class Super(Plain):
    """The same with `super().__call__`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with context():
            return super().__call__(*args, **kwargs)


class Own(Ours):
    """The same in a subclass of `onejob.Task`."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with context():
            return self.run(*args, **kwargs)


class OwnSuper(Ours):
    """The same with `super().__call__`."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with context():
            return super().__call__(*args, **kwargs)


class FlaskFirst(Flask, Ours):
    abstract = True


class FlaskLast(Ours, Flask):
    abstract = True


class SuperFirst(Super, Ours):
    abstract = True


class SuperLast(Ours, Super):
    abstract = True


class Inherited(OwnSuper):
    abstract = True


class Twice(OwnSuper):
    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with context():
            return super().__call__(*args, **kwargs)


class WithoutSuper:
    """A mixin whose `on_bound` calls no other one, as Celery's documentation asks for none."""

    @classmethod
    def on_bound(cls, app: celery.Celery) -> None:
        pass


class Mixed(WithoutSuper, Own):
    abstract = True


class Hooked(Ours):
    """A class whose hooks raise what Celery lets through: those that the data of a call names."""

    abstract = True

    def on_success(self, _value: Any, _id: str, args: Any, _kwargs: Any) -> None:
        if [*args[2:]] == ["on_success"]:
            raise MemoryError("in on_success")
        if [*args[2:]] == ["reject"]:
            raise Reject("in on_success", requeue=False)

    def after_return(self, _state: str, _value: Any, _id: str, args: Any, *_: Any) -> None:
        if [*args[2:]] == ["after_return"]:
            raise MemoryError("in after_return")


CLASSES: dict[str, Any] = {
    f"play_{name}": kind
    for name, kind in {
        "flask_first": FlaskFirst, "flask_last": FlaskLast, "super_first": SuperFirst, "super_last": SuperLast,
        "own": Own, "own_super": OwnSuper, "inherited": Inherited, "twice": Twice, "mixed": Mixed,
    }.items()
}  # fmt: skip
"""Names of tasks, and the classes that these have."""
