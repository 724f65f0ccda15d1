"""Request bodies of submissions: one model per exposed task, built from its signature."""

import inspect
import json
import typing
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from inspect import Parameter
from typing import Annotated, Any, ClassVar, Literal, NotRequired, Union
from weakref import WeakKeyDictionary

from celery import Celery
from fastapi.exceptions import RequestValidationError
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic_core import CoreSchema
from typing_extensions import TypedDict  # pydantic requires this `TypedDict` up to Python 3.11

from onejob.api.checked_request import parse_json
from onejob.api.problems import MAX_ERRORS, Problem
from onejob.celery.app_state import app_state_of
from onejob.celery.option_declarations import TAG_COUNT, TAG_LENGTH
from onejob.celery.submission.options import body_of, tasks_of
from onejob.celery.task import Task
from onejob.errors import ConfigurationError, InvalidArgumentsError
from onejob.jobs.submitter import NAME_LIMIT
from onejob.webhooks.settings import URL_LIMIT

MAX_DELAY = 366 * 86_400.0
"""The longest time until a job is due, in seconds."""
KEY = "A name of this submission, which makes it safe to repeat. The header `Idempotency-Key` may carry it instead."
KEY_PATTERN = r"^[ -~]*$"
"""Printable ASCII, which the header can carry, too."""
KEY_SCHEMA = {
    "type": "string", "minLength": 1, "maxLength": NAME_LIMIT, "pattern": KEY_PATTERN, "description": KEY,
}  # fmt: skip
PUBLIC_URL = r"^https://([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}([/?][A-Za-z0-9._~/?&=-]*)?$"
"""A pattern of URLs that the default configuration of webhooks accepts; it accepts others, too."""
TAG_PATTERN = r"^[!-~]([ -~]*[!-~])?$"
"""Printable ASCII. Any other printable character is accepted, too, but no pattern expresses them all."""
Tag = Annotated[str, Field(min_length=1, max_length=TAG_LENGTH, json_schema_extra={"pattern": TAG_PATTERN})]
WHOLE = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
"""Takes 7.0 as 7, as JSON Schema does. In arguments of tasks, which are passed on unchanged, 7.0 is no integer."""
CALL_OPTIONS = frozenset({"countdown", "eta", "priority", "tags"})
"""The fields that are options of `apply_async`."""
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
"""The time that replaces any earlier time: as much in the past, and within the limits of a job's times."""
make_typed_dict: Any = TypedDict  # a type checker does not support names and types computed at run time
literal: Any = Literal  # the same
_arguments: WeakKeyDictionary[Task, tuple[Any, bool]] = WeakKeyDictionary()


class CallRequest(BaseModel):
    """A call of a task, which may be a duplicate."""

    model_config = ConfigDict(extra="forbid")

    task: str
    kwargs: dict[str, Any] = Field(default_factory=dict)
    on_duplicate: Literal["attach", "raise"] | None = Field(
        None, description="If an equal job exists: `raise` responds with 409, `attach` with that job."
    )


class SubmitRequest(CallRequest):
    """A submission."""

    requires_key: ClassVar[bool] = False
    sends_webhooks: ClassVar[bool] = True

    idempotency_key: str | None = Field(None, min_length=1, max_length=NAME_LIMIT, pattern=KEY_PATTERN, description=KEY)
    countdown: float | None = Field(None, ge=0, le=MAX_DELAY, description="Seconds until the job is due.")
    eta: Annotated[AwareDatetime, AfterValidator(lambda at: max(at, LONG_AGO))] | None = Field(
        None, description="When the job is due; an alternative to `countdown`."
    )
    priority: Annotated[int | None, Field(ge=0, le=255), WHOLE] = None
    webhook_url: str | None = Field(
        None,
        min_length=1,
        max_length=URL_LIMIT,
        description="An HTTPS URL that gets a signed request when the job ends.",
        json_schema_extra={"pattern": PUBLIC_URL},
    )
    tags: list[Tag] | None = Field(
        None, max_length=TAG_COUNT, description="Words by which people find the job, besides those of its task."
    )
    validate_only: bool = Field(default=False, description="Validate, return the identity, and store nothing.")

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON Schema, with the parts that depend on the app, and rules for more than one field."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        schema["not"] = {
            "required": ["countdown", "eta"],
            "properties": {"countdown": {"type": "number"}, "eta": {"type": "string"}},
        }
        if cls.requires_key:
            schema["required"] = [*schema["required"], "idempotency_key"]
            schema["properties"]["idempotency_key"] = KEY_SCHEMA
        if not cls.sends_webhooks:
            del schema["properties"]["webhook_url"]
        return schema


def exposed_tasks(app: Celery) -> dict[str, Task]:
    """Return the tasks with `expose=True`, by name. Raises `ConfigurationError` if there is none."""
    app.loader.import_default_modules()
    app.finalize(auto=True)
    tasks = {name: task for name, task in tasks_of(app).items() if task._onejob.expose}
    if not tasks:
        msg = "the app exposes no task: use @app.task(base=onejob.Task, expose=True), and import the task's module"
        raise ConfigurationError(msg)
    return typing.cast("dict[str, Task]", tasks)


class RequestReader:
    """Validates request bodies as submissions of these tasks, in pydantic's strict mode.

    Values are passed on without coercion: "7" is not 7, and a date is validated but remains a string. So a job
    submitted over HTTP is equal to one submitted from Python with the same JSON values.
    """

    def __init__(self, tasks: Mapping[str, Task], base: type[CallRequest] = SubmitRequest) -> None:
        models = tuple(_build_model(name, task, base) for name, task in tasks.items())
        self._names = frozenset(tasks)
        one_of: Any = Annotated[Union[models], Discriminator("task")]  # noqa: UP007 - built at run time
        self.type: Any = models[0] if len(models) == 1 else one_of
        self._adapter: TypeAdapter[Any] = TypeAdapter(self.type)

    def _hint(self, name: str) -> str:
        nearest = get_close_matches(name, self._names, 1)
        if nearest:
            return f": did you mean {nearest[0]!r}? A task is exposed by expose=True in its definition"
        return ": a task is exposed by expose=True in its definition"

    def parse(self, body: bytes) -> Any:
        """Return the submission or call of a body; the error for an unknown task names a similar exposed task.

        Raises `Problem` and `RequestValidationError`.
        """
        value = parse_json(body)
        try:
            submission = self._adapter.validate_json(body, strict=True)
        except ValidationError as error:
            name = value.get("task") if isinstance(value, dict) else None
            if isinstance(name, str) and name not in self._names:
                msg = f"{name[:NAME_LIMIT]!r} is not exposed{self._hint(name[:NAME_LIMIT])}"
                problem = {"loc": ("body", "task"), "msg": msg, "type": "not_exposed"}
                raise RequestValidationError([problem]) from None
            found = error.errors(include_url=False, include_context=False, include_input=False)[:MAX_ERRORS]
            raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in found]) from None
        submission.kwargs = value.get("kwargs", {})
        return submission


def check_arguments(name: str, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise `InvalidArgumentsError` for arguments that an exposed task does not accept over HTTP."""
    if not task._onejob.expose:
        return
    try:
        bound = task._onejob.identifier.signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise InvalidArgumentsError(str(error)) from None
    try:
        RequestReader({name: task}).parse(json.dumps({"task": name, "kwargs": bound}, default=str).encode())
    except RequestValidationError as error:
        places = (f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in error.errors())
        raise InvalidArgumentsError("; ".join(places)) from None
    except Problem as problem:
        if problem.slug == "too-large":
            raise InvalidArgumentsError(str(problem.detail)) from None
        return  # a value such as NaN, for which the submission raises an error


def _build_model(name: str, task: Task, base: type[CallRequest]) -> type[BaseModel]:
    arguments, is_required = _arguments_of(task)
    return create_model(
        name.replace(".", "-") + ("" if base is SubmitRequest else "-call"),
        __base__=base,
        __doc__=inspect.getdoc(body_of(type(task))[0]) or f"A submission of {name}.",
        task=(literal[name], ...),
        kwargs=(arguments, ...) if is_required else (arguments, Field(default_factory=dict)),
        requires_key=(ClassVar[bool], task._onejob.requires_key),
        sends_webhooks=(ClassVar[bool], app_state_of(task.app).webhooks.has_secrets),
    )


def _arguments_of(task: Task) -> tuple[Any, bool]:
    """Return the type of a task's arguments, and whether any is required; submissions and checks share the type."""
    found = _arguments.get(task)
    if found is None:
        try:
            hints = typing.get_type_hints(body_of(type(task))[0], include_extras=True)
        except Exception as error:  # a hint may be any code, which may raise anything
            msg = f"task {task.name} is exposed, but its type hints cannot be read: {error!r}"
            raise ConfigurationError(msg) from error
        fields, is_required = dict[str, Any](), False
        for parameter in task._onejob.identifier.signature.parameters.values():
            hint = hints.get(parameter.name, Any)
            is_optional = parameter.default is not Parameter.empty
            is_required = is_required or not is_optional
            fields[parameter.name] = NotRequired[hint] if is_optional else hint
        arguments = make_typed_dict(f"{task.name.replace('.', '-')}-arguments", fields)
        arguments.__pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
        try:
            TypeAdapter(arguments).json_schema()
        except Exception as error:  # whatever pydantic or a type's own hooks raise
            msg = f"task {task.name} is exposed, but its type hints cannot be validated as JSON: {error}"
            raise ConfigurationError(msg) from error
        found = _arguments[task] = arguments, is_required
    return found
