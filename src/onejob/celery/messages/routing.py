"""Resolves the route of a job's message, once, in the process that submits it, and checks that it can be sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

from celery import Celery
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute
from celery.utils.nodenames import gethostname
from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.compression import encoders, get_encoder
from kombu.serialization import dumps, prepare_accept_content, registry  # type: ignore[attr-defined] # of the types

from onejob.celery.messages.broker import are_own
from onejob.celery.messages.payload import CANVAS, SUBMITTER_HEADER, TRANSIENT, decode, encode_options, has_canvas
from onejob.celery.option_declarations import check_option_values
from onejob.errors import InvalidArgumentsError, InvalidPayloadError
from onejob.jobs.route import Route
from onejob.jobs.text_limits import TextLimits

DESTINATION = ("queue", "exchange", "routing_key", "exchange_type")
"""The options that a route replaces."""
UNPUBLISHABLE = "onejob: the message of this job cannot be sent"
"""The note on every exception that a caller gets for a message that cannot be sent."""
_ALWAYS_ENCODE = frozenset({"json", "pickle"})
"""The serializers that can encode every stored payload."""
PLAN_LIMIT = 512
"""How many plans, and how many routes, are kept; with one more, all are forgotten."""
_VARYING = TRANSIENT | {"root_id", "parent_id"}
_OFTEN_ABSENT = _VARYING - {"expires"}
"""The varying options that are often absent. Celery gives an expiry with every call, which is mostly None."""
_SIMPLE = frozenset({str, int, float, bool})
"""The types of the options by which plans are found. A value of another type may change, or cannot be compared."""


class Plan(NamedTuple):
    """The plan for the messages of a task's calls with equal options: route and options, checked and encoded once."""

    route: str
    options: str
    """The options of the message as JSON, without the ids of the run that submits the job."""
    priority_rank: int
    canvas: bool
    checked_options: Mapping[str, Any] | None
    """The options for `check_message`; None: the message can be encoded whatever its arguments are."""
    host: str
    shared: bool
    """Whether other arguments, with the same options, have the same plan."""


class Routing:
    """The routes of one app. They are cached unless a router function, which may read the arguments, decides."""

    def __init__(self, app: Celery, limits: TextLimits) -> None:
        self._app: Any = app
        self._limits = limits
        self._plans: dict[tuple[Any, ...] | None, Plan] = {}
        self._router: Any = None
        self._is_static = False
        self._cache: dict[tuple[Any, ...], tuple[str, dict[str, Any]]] = {}
        self._queues: dict[str, Queue | None] = {}
        """The queues that the app's settings do not have, by name; None for a queue that this app does not declare."""

    def is_static(self) -> bool:
        """Return whether no router function, which may read arguments, decides. Raises for invalid `task_routes`."""
        try:
            # Celery's cached properties are slow, and end there.
            router = self._app.__dict__["amqp"].__dict__["router"]
        except KeyError:
            with noting_unpublishable():
                router = self._app.amqp.router
        if router is not self._router:  # a change of the settings has replaced it
            self._router, self._cache, self._plans = router, {}, {}
            self._is_static = all(isinstance(each, MapRoute) for each in router.routes)
        return self._is_static

    def plan(
        self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any], scope: str | None
    ) -> Plan:
        """Return the plan of a call, for a submitter's `scope`. Raises what `resolve` and `encode_options` raise."""
        is_static = self.is_static()
        if options.get("expires") is not None or not _OFTEN_ABSENT.isdisjoint(options):
            options = {name: value for name, value in options.items() if name not in _VARYING}
        key = (task.name, scope, *options.items(), *map(type, options.values()))  # True is 1, and is not
        try:
            plan = self._plans.get(key)
        except TypeError:  # an option that cannot be compared, such as headers
            plan = None
        return plan or self._new_plan(task, args, kwargs, options, scope, key if is_static else None)

    def _new_plan(
        self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any],
        scope: str | None, key: tuple[Any, ...] | None,
    ) -> Plan:  # fmt: skip
        """Return a new plan, kept under a `key`. All tasks are bound: a misconfigured task raises before any job."""
        if not self._app.finalized:
            self._app.finalize(auto=True)
        options = {name: value for name, value in options.items() if value is not None}
        check_option_values(options)
        soft, hard = options.get("soft_time_limit"), options.get("time_limit")
        if soft and hard and soft > hard:  # Celery raises a `ValueError`, too
            msg = f"task {task.name}: soft_time_limit must be less than or equal to time_limit, not {soft} and {hard}"
            raise InvalidPayloadError(msg)
        shared = key is not None and _SIMPLE.issuperset(map(type, options.values()))
        if scope is not None:
            options = {**options, "headers": {**(options.get("headers") or {}), SUBMITTER_HEADER: scope}}
        route, sent_options = self.resolve(task, args, kwargs, options)
        serializer, compression = self.encoding(sent_options)
        self._check_accepted(serializer)
        always_encodes = compression is None and serializer in _ALWAYS_ENCODE
        plan = Plan(
            route=route, options=encode_options(sent_options, self._limits),
            priority_rank=self.priority_rank(sent_options), canvas=has_canvas(options),
            checked_options=None if always_encodes else sent_options, host=gethostname(),
            shared=shared,
        )  # fmt: skip
        if shared:
            if len(self._plans) >= PLAN_LIMIT:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def priority_rank(self, options: Mapping[str, Any]) -> int:
        """Return the rank of the `priority` in some options: a larger rank is consumed earlier, on every transport."""
        priority = options.get("priority")
        return priority * self.priority_sign if isinstance(priority, int) else 0

    def with_priority(self, options: dict[str, Any], priority_rank: int) -> dict[str, Any]:
        """Return options with the priority of a job, which an equal submission may have raised."""
        if self.priority_rank(options) == priority_rank:
            return options
        return {**options, "priority": priority_rank * self.priority_sign}

    @cached_property
    def priority_sign(self) -> int:
        """The sign of a priority's rank: 1, or -1 on Redis, where 0 is the highest priority."""
        transport = self._app.connection_for_write().transport_cls
        return -1 if transport in {"redis", "rediss", "sentinel"} else 1

    def resolve(
        self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """Return the route of a message, encoded, and its options: without the destination, with the route's options.

        Raises Celery's `QueueNotFound` for an unknown queue that must not be created, and what a router raises.
        """
        given = {name: value for name, value in options.items() if value is not None and name not in TRANSIENT}
        destination = {name: _text_of(given.pop(name)) for name in DESTINATION if name in given}
        is_static = self.is_static()
        with noting_unpublishable():
            if not (is_static and all(isinstance(value, str) for value in destination.values())):
                return self._route(task, args, kwargs, {**given, **destination})
            key = (task.name, *destination.items())
            found = self._cache.get(key)
            if found is None:
                if len(self._cache) >= PLAN_LIMIT:
                    self._cache.clear()
                found = self._cache[key] = self._route(task, (), {}, destination)
        return found[0], found[1] | given

    def resolve_retry(
        self, own: str, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """Return the route and options of a retry, as `resolve`: the job's `own` route, unless the options name one."""
        given = {name: _name_of(options.get(name)) for name in DESTINATION}
        route = Route.decode(own)
        is_own = (
            given["queue"] == route.queue
            if given["queue"]
            else ((given["exchange"], given["routing_key"]) == (route.exchange, route.routing_key))
        )
        if own and is_own:
            return own, {name: value for name, value in options.items() if name not in DESTINATION}
        return self.resolve(task, args, kwargs, options)

    def destination(self, text: str) -> dict[str, Any]:
        """Return the options that send a message by an encoded route, whatever the app's own routes are."""
        route, queues = Route.decode(text), self._app.amqp.queues
        queue: Queue | None = queues.get(route.queue)
        if queue is None and route.queue:  # as Celery would create it here
            if route.queue not in self._queues:
                creates = queues.create_missing and route.is_direct
                self._queues[route.queue] = queues.new_missing(route.queue) if creates else None
            queue = self._queues[route.queue]
        declare: list[Any] = [] if queue is None or isinstance(queue, Broadcast) else [queue]
        is_unknown = route.exchange and (queue is None or queue.exchange.name != route.exchange)
        if is_unknown and self._app.connection_for_write().transport.driver_type == "amqp":
            declare.append(Exchange(route.exchange, passive=True))  # RabbitMQ refuses an unknown one now, not later
        # Celery sends by the exchange and the routing key as they are given, unless it regards the exchange as direct.
        given = {"exchange": route.exchange, "routing_key": route.routing_key, "exchange_type": "topic"}
        return {"queue": queue, "declare": declare} | given

    def declare(self, text: str, producer: Any) -> None:
        """Declare the queue and the exchange of an encoded route, as Celery does, once per connection of a producer."""
        for entity in self.destination(text)["declare"]:
            producer.maybe_declare(entity)

    def check_message(self, payload: str, options: Mapping[str, Any]) -> None:
        """Raise kombu's `SerializerNotInstalled` or `EncodeError`, or `InvalidArgumentsError` for a compression."""
        serializer, compression = self.encoding(options)
        with noting_unpublishable():
            if compression is not None:
                try:
                    get_encoder(compression)
                except (KeyError, TypeError):
                    known = ", ".join(sorted(map(str, encoders())))
                    msg = f"compression={compression!r:.100} is unknown here: use one of {known}, or none"
                    raise InvalidArgumentsError(msg) from None
            if serializer not in _ALWAYS_ENCODE:
                message = decode(payload)
                dumps((message.args, message.kwargs, {name: options.get(name) for name in CANVAS}), serializer)

    def _check_accepted(self, serializer: str) -> None:
        accepted = self._app.conf.accept_content
        content_type = registry.name_to_type.get(serializer)
        if content_type is not None and accepted and content_type not in (prepare_accept_content(accepted) or ()):
            with noting_unpublishable():
                raise InvalidArgumentsError(
                    f"serializer={serializer!r} is not in accept_content={sorted(accepted)}, so workers refuse such "
                    "messages: use 'json', in which arguments are stored anyway, or add it to accept_content"
                )

    @cached_property
    def is_plain_amqp(self) -> bool:
        """Whether Celery's own code composes messages, in its default protocol."""
        amqp = self._app.amqp
        functions = (amqp.as_task_v2, amqp.send_task_message)
        return type(amqp) is AMQP and are_own(functions) and amqp.create_task_message == amqp.as_task_v2

    def encoding(self, options: Mapping[str, Any]) -> tuple[str, str | None]:
        """Return the serializer and the compression of a message with these options."""
        return options.get("serializer") or self._defaults[0], options.get("compression") or self._defaults[1]

    @cached_property
    def _defaults(self) -> tuple[str, str | None]:
        """The app's serializer and compression, read once, like in Celery: `conf` is slow."""
        return self._app.conf.task_serializer, self._app.conf.task_compression

    def _route(
        self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        names_queue = options.get("queue") is not None
        routed = self._router.route(options, task.name, args, kwargs, task)
        route = self._route_of(routed)
        is_default = not names_queue and route.queue == self._app.conf.task_default_queue
        if is_default and not route.is_direct and routed.get("exchange"):
            route = route._replace(queue="")  # Celery names the default queue beside an explicit exchange
        rest = {name: value for name, value in routed.items() if name not in DESTINATION and value is not None}
        return route.encode(), rest

    def _route_of(self, routed: Mapping[str, Any]) -> Route:
        """Return the route in the options of a router, by the rules of Celery's `send_task_message`."""
        queue, exchange, routing_key = routed.get("queue"), routed.get("exchange"), routed.get("routing_key")
        assert isinstance(queue, Queue)  # noqa: S101 - a router of Celery always adds one
        if queue.name not in self._app.amqp.queues:
            self._queues[queue.name] = queue
        own: Any = queue.exchange
        kind = routed.get("exchange_type") or own.type or "direct"
        if kind == "direct" and not (exchange and routing_key):
            return Route.to_queue(queue.name)
        if exchange is None:
            exchange = own.name or self._app.amqp.default_exchange
            routing_key = routing_key or queue.routing_key or self._app.conf.task_default_routing_key
        return Route(str(_name_of(exchange)), str(_text_of(routing_key) or ""), queue.name)


def _text_of(value: Any) -> Any:
    """Return the text of a member of an enum of texts, whose `str` may differ; any other value as it is."""
    return str.__str__(value) if isinstance(value, str) else value


def _name_of(entity: Any) -> Any:
    """Return the name of a queue or an exchange, which may be given as its name."""
    return getattr(_text_of(entity), "name", _text_of(entity))


@contextmanager
def noting_unpublishable() -> Iterator[None]:
    """Add the note `UNPUBLISHABLE` to any exception of the block."""
    try:
        yield
    except Exception as error:
        error.add_note(UNPUBLISHABLE)
        raise


def is_unpublishable(error: BaseException) -> bool:
    """Return whether an exception was raised because the message of a job cannot be sent."""
    return UNPUBLISHABLE in getattr(error, "__notes__", ())
