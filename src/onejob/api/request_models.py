"""What may be asked for: one model for each exposed task, made from its signature."""

from __future__ import annotations

import inspect
import typing
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, Union

from fastapi.exceptions import RequestValidationError
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
)
from typing_extensions import TypedDict  # pydantic asks for this one up to Python 3.11

from onejob.api.json_body import parse
from onejob.celery.options import body_of, options_of, tasks_of
from onejob.errors import ConfigurationError
from onejob.jobs.submitter import NAME_LIMIT
from onejob.webhooks.url import URL_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery

    from onejob.celery.task import Task

LONGEST_DELAY = 366 * 86_400.0
make_typed_dict: Any = TypedDict  # a type checker knows no names and types that are found at run time
literal: Any = Literal  # the same


class SubmitRequest(BaseModel):
    """A submission."""

    model_config = ConfigDict(extra="forbid")

    task: str
    kwargs: dict[str, Any] = Field(default_factory=dict)
    idempotency_key: str | None = Field(None, min_length=1, max_length=NAME_LIMIT)
    countdown: float | None = Field(None, ge=0, le=LONGEST_DELAY, description="Seconds until the job is due.")
    eta: AwareDatetime | None = Field(None, description="When the job is due; instead of a countdown.")
    priority: int | None = Field(None, ge=0, le=255)
    on_duplicate: Literal["raise"] | None = Field(None, description="`raise`: a job that is there already is a 409.")
    webhook_url: str | None = Field(
        None, min_length=1, max_length=URL_LIMIT, description="Where the end of the job is told, signed, over HTTPS."
    )
    validate_only: bool = Field(default=False, description="Check, tell the identity, and store nothing.")


REQUIRED_KEY = Field(
    None, min_length=1, max_length=NAME_LIMIT, json_schema_extra={"x-requires-key": True},
    description="Required, here or as the header Idempotency-Key.",
)  # fmt: skip


def exposed_tasks(app: Celery) -> dict[str, Task]:
    """Return the tasks that may be called, by name. Raises `ConfigurationError` when there is none."""
    app.loader.import_default_modules()
    app.finalize(auto=True)
    found = {name: task for name, task in tasks_of(app).items() if options_of(task).expose}
    if not found:
        msg = "the app exposes no task: say @app.task(base=onejob.Task, expose=True), and import the task's module"
        raise ConfigurationError(msg)
    return typing.cast("dict[str, Task]", found)


class Reader:
    """Reads requests: submissions of these tasks, as strict as JSON can be.

    What was sent is what the task gets. Nothing is coerced: "7" is not 7, and a date stays the text that was checked
    to be one. So a job that is asked for over HTTP is equal to one that Python asks for with the same JSON.
    """

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        models = tuple(_model(name, task) for name, task in tasks.items())
        one_of: Any = Annotated[Union[models], Discriminator("task")]  # noqa: UP007 - made at run time
        self.type: Any = models[0] if len(models) == 1 else one_of
        """The type of a request's body."""
        self._adapter: TypeAdapter[SubmitRequest] = TypeAdapter[Any](self.type)

    def read(self, body: bytes) -> SubmitRequest:
        """Return what a body asks for. Raises `Problem` and `RequestValidationError`."""
        value = parse(body)
        try:
            asked = self._adapter.validate_json(body, strict=True)
        except ValidationError as error:
            found = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
            raise RequestValidationError(found) from None
        asked.kwargs = value.get("kwargs", {})
        return asked


def _model(name: str, task: Task) -> type[BaseModel]:
    hints, options, plain = _hints(task), options_of(task), name.replace(".", "-")
    fields: dict[str, Any] = {}
    needed = False
    for parameter in options.identifier.signature.parameters.values():
        hint = hints.get(parameter.name, Any)
        optional = parameter.default is not Parameter.empty
        needed = needed or not optional
        fields[parameter.name] = NotRequired[hint] if optional else hint
    key: dict[str, Any] = {"idempotency_key": (str | None, REQUIRED_KEY)} if options.requires_key else {}
    arguments = make_typed_dict(f"{plain}-arguments", fields)
    arguments.__pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    try:
        model: type[BaseModel] = create_model(
            plain,
            __base__=SubmitRequest,
            __doc__=inspect.getdoc(body_of(type(task))[0]) or f"A submission of {name}.",
            task=(literal[name], ...),
            kwargs=(arguments, ...) if needed else (arguments, Field(default_factory=dict)),
            **key,
        )
        model.model_json_schema()
    except Exception as error:  # whatever pydantic or a type's own hooks raise
        msg = f"task {name} is exposed, but its type hints cannot be checked against JSON: {error}"
        raise ConfigurationError(msg) from error
    return model


def _hints(task: Task) -> dict[str, Any]:
    body, _ = body_of(type(task))
    try:
        return typing.get_type_hints(body, include_extras=True)
    except Exception as error:  # a hint is code, and may raise anything
        msg = f"task {task.name} is exposed, but its type hints cannot be read: {error!r}"
        raise ConfigurationError(msg) from error
