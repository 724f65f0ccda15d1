"""Request bodies of submissions: one model per exposed task, built from its signature."""

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
from typing_extensions import TypedDict  # pydantic requires this one up to Python 3.11

from onejob.api.json_body import parse_json
from onejob.celery.options import body_of, options_of, tasks_of
from onejob.errors import ConfigurationError
from onejob.jobs.submitter import NAME_LIMIT
from onejob.webhooks.url import URL_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery

    from onejob.celery.task import Task

MAX_DELAY = 366 * 86_400.0
"""The longest time until a job is due, in seconds."""
make_typed_dict: Any = TypedDict  # a type checker does not support names and types computed at run time
literal: Any = Literal  # the same


class SubmitRequest(BaseModel):
    """A submission."""

    model_config = ConfigDict(extra="forbid")

    task: str
    kwargs: dict[str, Any] = Field(default_factory=dict)
    idempotency_key: str | None = Field(None, min_length=1, max_length=NAME_LIMIT)
    countdown: float | None = Field(None, ge=0, le=MAX_DELAY, description="Seconds until the job is due.")
    eta: AwareDatetime | None = Field(None, description="When the job is due; an alternative to `countdown`.")
    priority: int | None = Field(None, ge=0, le=255)
    on_duplicate: Literal["raise"] | None = Field(None, description="`raise`: respond with 409 if an equal job exists.")
    webhook_url: str | None = Field(
        None,
        min_length=1,
        max_length=URL_LIMIT,
        description="An HTTPS URL that gets a signed request when the job ends.",
    )
    validate_only: bool = Field(default=False, description="Validate, return the identity, and store nothing.")


REQUIRED_KEY_FIELD = Field(
    None, min_length=1, max_length=NAME_LIMIT, json_schema_extra={"x-requires-key": True},
    description="Required, here or as the header Idempotency-Key.",
)  # fmt: skip


def exposed_tasks(app: Celery) -> dict[str, Task]:
    """Return the tasks with `expose=True`, by name. Raises `ConfigurationError` if there is none."""
    app.loader.import_default_modules()
    app.finalize(auto=True)
    tasks = {name: task for name, task in tasks_of(app).items() if options_of(task).expose}
    if not tasks:
        msg = "the app exposes no task: use @app.task(base=onejob.Task, expose=True), and import the task's module"
        raise ConfigurationError(msg)
    return typing.cast("dict[str, Task]", tasks)


class RequestReader:
    """Validates request bodies as submissions of these tasks, in pydantic's strict mode.

    Values are passed on without coercion: "7" is not 7, and a date is validated but remains a string. So a job
    submitted over HTTP is equal to one submitted from Python with the same JSON values.
    """

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        models = tuple(_build_model(name, task) for name, task in tasks.items())
        one_of: Any = Annotated[Union[models], Discriminator("task")]  # noqa: UP007 - built at run time
        self.type: Any = models[0] if len(models) == 1 else one_of
        """The type of a request body."""
        self._adapter: TypeAdapter[SubmitRequest] = TypeAdapter[Any](self.type)

    def read(self, body: bytes) -> SubmitRequest:
        """Return the submission of a body. Raises `Problem` and `RequestValidationError`."""
        value = parse_json(body)
        try:
            submission = self._adapter.validate_json(body, strict=True)
        except ValidationError as error:
            errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
            raise RequestValidationError(errors) from None
        submission.kwargs = value.get("kwargs", {})
        return submission


def _build_model(name: str, task: Task) -> type[BaseModel]:
    hints, options, schema_name = _type_hints(task), options_of(task), name.replace(".", "-")
    fields: dict[str, Any] = {}
    any_required = False
    for parameter in options.identifier.signature.parameters.values():
        hint = hints.get(parameter.name, Any)
        optional = parameter.default is not Parameter.empty
        any_required = any_required or not optional
        fields[parameter.name] = NotRequired[hint] if optional else hint
    key: dict[str, Any] = {"idempotency_key": (str | None, REQUIRED_KEY_FIELD)} if options.requires_key else {}
    arguments = make_typed_dict(f"{schema_name}-arguments", fields)
    arguments.__pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    try:
        model: type[BaseModel] = create_model(
            schema_name,
            __base__=SubmitRequest,
            __doc__=inspect.getdoc(body_of(type(task))[0]) or f"A submission of {name}.",
            task=(literal[name], ...),
            kwargs=(arguments, ...) if any_required else (arguments, Field(default_factory=dict)),
            **key,
        )
        model.model_json_schema()
    except Exception as error:  # whatever pydantic or a type's own hooks raise
        msg = f"task {name} is exposed, but its type hints cannot be validated as JSON: {error}"
        raise ConfigurationError(msg) from error
    return model


def _type_hints(task: Task) -> dict[str, Any]:
    body, _ = body_of(type(task))
    try:
        return typing.get_type_hints(body, include_extras=True)
    except Exception as error:  # a hint may be any code, which may raise anything
        msg = f"task {task.name} is exposed, but its type hints cannot be read: {error!r}"
        raise ConfigurationError(msg) from error
