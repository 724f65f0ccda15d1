"""The laws of identity: which values and which calls are equal, which differ, and which are refused."""

import base64
import dataclasses
import decimal
import enum
import functools
import json
import math
import sys
import tracemalloc
from collections import UserDict, defaultdict, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Self
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.utils.functional import Promise, lazystr
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils import json as kombu_json
from pydantic import BaseModel

import onejob.uniqueness.canonical_json
import onejob.uniqueness.identity
from onejob.errors import ConfigurationError, InvalidArgumentsError, InvalidPayloadError
from onejob.jobs.text_limits import TextLimits
from onejob.uniqueness.canonical_json import ALGORITHM, canonical
from onejob.uniqueness.identity import Identifier
from tests.cases import for_each

SAMPLE_UUID = UUID("12345678-1234-5678-1234-567812345678")


class Color(enum.Enum):
    RED = "red"


class Shape(str, enum.Enum):
    ROUND = "round"


class Level(enum.IntEnum):
    HIGH = 3


class Labeled(str, enum.Enum):
    """A text Enum whose value is not its content: JSON sends the content."""

    def __new__(cls, content: str, label: str) -> Self:
        member = str.__new__(cls, content)
        member._value_ = label
        return member

    ONE = ("content", "label")


class Text(str):
    def __str__(self) -> str:
        return "leak"

    def __len__(self) -> int:
        return 0

    __repr__ = __str__


class Whole(int):
    def __repr__(self) -> str:
        return "leak"

    def __abs__(self) -> int:
        return 0

    __str__ = __repr__


class Real(float):
    def __repr__(self) -> str:
        return "leak"

    __str__ = __repr__


class Moment(datetime):
    def isoformat(self, *_: object) -> str:
        return "leak"


class Sent:
    """An object that tells kombu how to send it."""

    def __init__(self, content: object) -> None:
        self.content = content

    def __json__(self) -> object:
        return self.content


@dataclasses.dataclass
class Line:
    sku: Any
    count: int = 1


class Customer(BaseModel):
    id: UUID
    tags: list[str] = []


Point = namedtuple("Point", "x y")  # noqa: PYI024 - the tuple is what is tested


def carried(value: object) -> Any:
    """Return `value` as a worker receives it."""
    kombu: Any = kombu_json  # which has no types
    return kombu.loads(kombu.dumps(value))


def sample(order: object, amount: object = 1, *, note: object = None) -> None:
    """Stand in for a task."""


def open_task(order: object, *rest: object, **more: object) -> None:
    """Stand in for a task that takes anything."""


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6) | st.sampled_from(
    ["", "$", "$$", "$uuid", "$date", "__type__", "__value__", "1", "null", "true", str(SAMPLE_UUID), "é", "e\u0301"]
)
zones = st.sampled_from([UTC, timezone(timedelta(hours=-5, minutes=-30)), ZoneInfo("Europe/Berlin")])
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0, 1, 1.0, 0.0, -0.0])
sendable_scalars = (
    st.none() | st.booleans() | numbers | texts | st.uuids() | st.binary(max_size=6) | st.dates()
    | st.datetimes(timezones=st.none() | zones) | st.times(timezones=st.none() | zones)
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.sampled_from([Shape.ROUND, Level.HIGH, Labeled.ONE, Text("text"), Whole(7), Real(7.5), Moment(2020, 1, 1)])
    | st.just(lazystr("é"))
)  # fmt: skip
scalars = sendable_scalars | st.timedeltas() | st.sampled_from([Color.RED, bytearray(b"a"), memoryview(b"b")])
keys = texts | st.none() | st.booleans() | numbers


def containers(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    lists = st.lists(inner, max_size=3)
    tuples = lists.map(tuple) | st.tuples(inner, inner).map(Point._make)
    return lists | tuples | st.dictionaries(keys, inner, max_size=3).filter(is_plain) | inner.map(Sent)


def is_plain(mapping: dict[Any, Any]) -> bool:
    """Return whether JSON keeps the mapping's keys apart and kombu takes none of them for its own."""
    sent = list(json.loads(json.dumps(dict.fromkeys(mapping))))
    return len(sent) == len(mapping) and set(sent) != {"__type__", "__value__"}


sendable = st.recursive(sendable_scalars, containers, max_leaves=8)
values = st.recursive(scalars, containers, max_leaves=8)


def typed(value: Any) -> object:
    """Return the value with every type spelled out: the independent model of what counts as different."""
    if isinstance(value, Sent | Promise):
        return typed(value.content if isinstance(value, Sent) else str(value))
    if isinstance(value, (str, bool, int, float)) or value is None:
        return typed_plain(value)
    if isinstance(value, enum.Enum):
        return typed(value.value)
    if isinstance(value, (list, tuple)):
        return ("list", *map(typed, value))
    if isinstance(value, dict):
        return ("dict", frozenset((sent_key(key), typed(item)) for key, item in value.items()))
    return typed_special(value)


def sent_key(key: object) -> object:
    return next(iter(json.loads(json.dumps({key: 0}))))


def typed_plain(value: Any) -> object:
    if value is None or isinstance(value, bool):
        return ("constant", repr(value))
    if isinstance(value, str):
        return ("str", str.__str__(value))
    return ("int", int.__repr__(value)) if isinstance(value, int) else ("float", float.__repr__(value))


def typed_special(value: Any) -> object:
    if isinstance(value, datetime):
        return ("datetime", datetime.isoformat(value.replace(tzinfo=None)), value.utcoffset())
    if isinstance(value, time):
        return ("time", value.replace(tzinfo=None, fold=0), value.utcoffset())
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ("bytes", bytes(value))
    return ("decimal", value.as_tuple()) if isinstance(value, Decimal) else (type(value).__name__, value)


SPECIAL: dict[str, Any] = {
    "uuid": UUID, "datetime": datetime.fromisoformat, "date": date.fromisoformat, "time": time.fromisoformat,
    "decimal": Decimal,
}  # fmt: skip
DECODERS = {f"${name}": build for name, build in SPECIAL.items()} | {
    "$timedelta": lambda text: timedelta(microseconds=int(text)), "$bytes": base64.b64decode
}  # fmt: skip


def decoded(tree: Any) -> object:
    """Return the value that a canonical text stands for, read by nothing but the documented rules."""
    if isinstance(tree, list):
        return [decoded(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    tag = next(iter(tree), "")
    if len(tree) == 1 and tag in DECODERS:
        return DECODERS[tag](tree[tag])
    return {key.removeprefix("$") if key.startswith("$") else key: decoded(item) for key, item in tree.items()}


@given(sendable)
def test_round_trip(value: object) -> None:
    """A value and what Celery's JSON makes of it have one canonical text."""
    assert canonical(value) == canonical(carried(value))


@given(values)
def test_text_can_be_read_back(value: object) -> None:
    """A canonical text determines its value and every type in it, so different values never share one."""
    assert typed(decoded(json.loads(canonical(value)))) == typed(value)


PECULIAR_KEYS = ["$a", "$", "__type__", "__value__", "\0", "\ud800", "true"]
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | st.sampled_from(["\0", "$", "\ud800", "é\\u0000"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.sampled_from(PECULIAR_KEYS), inner),
    max_leaves=12,
)  # fmt: skip


@given(plain | values, st.sampled_from([TextLimits(), TextLimits(size=40), TextLimits(depth=2)]))
def test_the_fast_way_writes_the_same(value: object, limits: TextLimits) -> None:
    """The standard library writes a plain value as the general writer does, and leaves every other value to that."""

    def attempt(write: Any) -> str:
        try:
            return str(write())
        except InvalidPayloadError as error:
            return f"refused: {error}"

    slow = attempt(lambda: onejob.uniqueness.canonical_json._Writer(limits, "value").write(value))
    assert attempt(lambda: canonical(value, limits)) == slow


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@for_each("usual", [
    {"user": {"id": 5, "name": "Zoë"}, "tags": ["a", ("b",)], "price": 1.5, "paid": True, "note": None},
    [{"sku": str(number), "counts": [number, [number]]} for number in range(4000)], nested(64),
])  # fmt: skip
def test_plain_values_take_the_fast_way(usual: Any) -> None:
    """What an application usually passes is written by the standard library, however many values are in it."""
    slow = onejob.uniqueness.canonical_json._Writer(TextLimits(), "value").write(usual)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onejob.uniqueness.canonical_json, "_Writer", None)
        assert canonical(usual) == slow


@for_each("function, args, kwargs", [
    (lambda a, b=2: None, (1,), {}), (lambda a, b=2: None, (1,), {"b": 3}),
    (lambda a, b=2: None, (), {"b": 3, "a": 1}), (lambda a, b=2: None, (), {"b": 3}),
    (lambda a, b=2: None, (1, 2, 3), {}), (lambda a, b=2: None, (1,), {"a": 1}),
    (lambda a, b=2: None, (1,), {"c": 1}), (lambda a, b=2: None, "ab", {}), (lambda: None, (), {}),
    (lambda a, /, b: None, (1, 2), {}), (lambda *a, b=1: None, (1, 2), {}),
])  # fmt: skip
def test_the_fast_binding_is_that_of_the_signature(function: Any, args: Any, kwargs: Any) -> None:
    """Arguments are bound as `inspect.Signature.bind` binds them, or refused as it refuses them."""
    bare = Identifier("t", function)
    slow = Identifier("t", function)
    slow._named = None

    def attempt(identifier: Identifier) -> object:
        try:
            return identifier.describe(args, kwargs)
        except InvalidArgumentsError as error:
            return str(error)

    assert attempt(bare) == attempt(slow)


@for_each("value, text", [
    ({Level.HIGH: 0, Shape.ROUND: 1}, '{"3":0,"round":1}'), ({Text("k"): 1, Whole(2): 2}, '{"2":2,"k":1}'),
    ({"__type__": 1, "__value__": 2, "x": 3}, '{"__type__":1,"__value__":2,"x":3}'), (UserDict(b=1), '{"b":1}'),
    (datetime(2020, 1, 2, 3, tzinfo=ZoneInfo("Europe/Berlin")), '{"$datetime":"2020-01-02T03:00:00+01:00"}'),
    (datetime(2020, 1, 2, 3, 4, 5, 6, fold=1), '{"$datetime":"2020-01-02T03:04:05.000006"}'),
    (memoryview(b"abcd")[::2], '{"$bytes":"YWM="}'), (Labeled.ONE, '"content"'), (Line("a"), '{"count":1,"sku":"a"}'),
    (Customer(id=SAMPLE_UUID), '{"id":{"$uuid":"12345678-1234-5678-1234-567812345678"},"tags":[]}'),
    (Sent(Sent({"a": 1})), '{"a":1}'),
])  # fmt: skip
def test_text_of_each_type(value: object, text: str) -> None:
    """Types beyond the golden values have the documented text, and a subclass has the text of its base."""
    assert canonical(value) == text


def test_decimal_ignores_the_context() -> None:
    """The decimal context of the calling thread does not change a text."""
    with decimal.localcontext() as context:
        context.capitals, context.prec = 0, 1
        assert canonical(Decimal("1.25E+5")) == '{"$decimal":"1.25E+5"}'


def selfish() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def doubled(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value, value]
    return value


class Itself:
    def __json__(self) -> Self:
        return type(self)()


class Broken(BaseModel):
    def model_dump(self, **_: object) -> dict[str, Any]:
        message = "secret"
        raise RuntimeError(message)


@for_each("value, words", [
    ({"items": [1, 2, 3, {4}]}, ["value.items[3]", "set", "sorted list"]),
    ([object()], ["value[0]", "object", "pass an id"]), (Line, ["type"]), ((i for i in "a"), ["generator"]),
    ([math.nan], ["value[0]", "nan"]), (-math.inf, ["-inf"]), (Decimal("NaN"), ["NAN"]),
    (Decimal("-Infinity"), ["INF"]), ({"a b": [math.nan]}, ["value['a b'][0]"]),
    ({"a": {1: 0, "1": 0}}, ["value.a", "two keys", "'1'"]), ({None: 0, "null": 0}, ["'null'"]),
    ({1.5: 0, "1.5": 0}, ["'1.5'"]), ({(1, 2): 0}, ["key", "tuple"]), ({Color.RED: 0}, ["key", "Color"]),
    ({math.inf: 0}, ["inf"]), ("a\0", ["NUL"]), (["\ud800"], ["value[0]", "surrogate"]),
    ({"\0": 0}, ["key", "NUL"]), ({"\udfff": 0}, ["key", "surrogate"]), (Text("\0"), ["NUL"]),
    ({"__type__": "uuid", "__value__": {"hex": "0" * 32}}, ["__type__", "rename"]),
    ([{"__type__": 1, "__value__": 2}], ["value[0]", "__type__"]), (10**4300, ["4300 digits"]),
    ({10**5000: 1}, ["4300 digits"]), (Whole(10**4300), ["4300 digits"]), (Itself(), ["Itself", "itself"]),
    (Broken(), ["Broken", "RuntimeError"]), (nested(100_000), ["64 levels"]), (selfish(), ["contains itself"]),
    (doubled(60), ["262144 bytes"]), ([Line(sku={1})], ["value[0].sku", "set"]),
])  # fmt: skip
def test_refusals_name_the_value(value: object, words: list[str]) -> None:
    """A value without a canonical text is refused with its path, what to do, and the user's own error as its cause."""
    with pytest.raises(InvalidPayloadError) as caught:
        canonical(value)
    assert isinstance(caught.value.__cause__, RuntimeError) is isinstance(value, Broken)
    assert caught.value.__cause__ or caught.value.__suppress_context__ or not caught.value.__context__
    message = str(caught.value)
    assert message.startswith("value")
    assert all(word in message for word in words), message
    assert "secret" not in message
    assert len(message) < 300


def test_depth_is_exact() -> None:
    """Containers may nest as deep as the limit says and no deeper, in lists, mappings and wrapped values alike."""
    assert canonical(nested(64)) == "[" * 64 + "]" * 64
    assert canonical([[Color.RED]], TextLimits(depth=2)) == '[["red"]]'
    for value in (nested(65), [{"a": [1]}], [Line(sku=[1])]):
        with pytest.raises(InvalidPayloadError, match="nested deeper"):
            canonical(value, TextLimits(depth=64 if value == nested(65) else 2))
    assert len(canonical(nested(50_000), TextLimits(depth=50_000))) == 100_000  # whatever the interpreter's stack holds


@for_each("value", ["é" * 9, ["ab", 1.5, {"k": b"abc"}], {"ключ": None}, "\n" * 5, b"1234", 10**20])
def test_size_is_exact(value: object) -> None:
    """The size limit counts the bytes of the text in UTF-8, to the byte."""
    size = len(canonical(value).encode())
    assert canonical(value, TextLimits(size=size))
    with pytest.raises(InvalidPayloadError, match=f"past {size - 1} bytes"):
        canonical(value, TextLimits(size=size - 1))


def test_huge_values_cost_little() -> None:
    """What is far over the size limit is refused without reading it through."""
    text, data = "x" * 64_000_000, b"x" * 64_000_000
    huge: list[object] = [text, {text: 1}, data, memoryview(data), [0] * 8_000_000, [text] * 9, 1 << 100_000_000]
    tracemalloc.start()
    try:
        for value in huge:
            with pytest.raises(InvalidPayloadError):
                canonical(value)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000  # bytes; what is read is written
    finally:
        tracemalloc.stop()


@for_each("digits", [640, 0])
def test_digits_whatever_the_process_allows(digits: int) -> None:
    """More than 4300 digits are refused, and fewer where the process allows fewer, never with a bare ValueError."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(digits)
    try:
        for value in (10**4300, -(10**4300), Whole(10**4300), *([10**1000] if digits else [])):
            with pytest.raises(InvalidPayloadError, match="digits"):
                canonical(value)
    finally:
        sys.set_int_max_str_digits(before)
    assert canonical(10**4300 - 1) == "9" * 4300


@for_each("limit", [0, -1, True, 1.5, "1", None])
def test_nonsense_limits(limit: Any) -> None:
    """A limit that is no whole number of at least 1 is a configuration error that names it."""
    for name in ("size", "depth"):
        with pytest.raises(ConfigurationError, match=name):
            TextLimits(**{name: limit})


@for_each("args, kwargs", [
    ((7,), {}), ([7], {}), ((), {"order": 7}), ((7, 1), {}), ((7,), {"amount": 1}), ((7,), {"note": None}),
    ((), {"note": None, "amount": 1, "order": 7}),
])  # fmt: skip
def test_spelling_is_nothing(args: Any, kwargs: Any) -> None:
    """Positional, keyword and default spellings of one call are one identity and one fingerprint."""
    identifier = Identifier("t", sample)
    assert identifier.describe(args, kwargs) == '{"arguments":{"amount":1,"note":null,"order":7},"task":"t"}'
    assert identifier.identity(args, kwargs) == identifier.identity((7,), {})
    assert identifier.both(args, kwargs)[1] == identifier.both((7,), {})[1]
    assert identifier.both((7,), {}) != Identifier("other", sample).both((7,), {})


def test_collected_arguments_have_names() -> None:
    """A * parameter is a list under its name, ** entries are entries of their own, and no entry is two arguments."""

    def task(a: object, /, *rest: object, **more: object) -> None: ...

    assert Identifier("t", open_task).arguments((1, 2, 3), {"x": 4}) == {"order": 1, "rest": [2, 3], "x": 4}
    assert Identifier("t", task).arguments((1,), {"more": 2}) == {"a": 1, "rest": [], "more": 2}
    for kwargs in ({"a": 2}, {"rest": [1]}):
        with pytest.raises(InvalidArgumentsError, match="at once"):
            Identifier("t", task).arguments((1,), kwargs)


@for_each("args, kwargs, words", [
    ((), {}, "missing.*'order'"), ((1, 2, 3), {}, "too many"), ((1,), {"odd": 1}, "no argument 'odd';"),
    ((), {"ordr": 1}, "no argument 'ordr': did you mean order[?];"),
    ((1,), {"order": 1}, "multiple values.*'order'"), ("a", {}, "list"), ((1,), {2: 3}, "strings"),
    (5, {}, "iterable"), ((1,), [1], "mapping"),
])  # fmt: skip
def test_misfits(args: Any, kwargs: Any, words: str) -> None:
    """Arguments that the signature does not take are refused with the task, the reason and the parameters."""
    with pytest.raises(InvalidArgumentsError, match=words) as caught:
        Identifier("shop.pay", sample).identity(args, kwargs)
    assert "'shop.pay'" in str(caught.value)
    assert str(caught.value).endswith("it takes order, amount, note")


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@for_each("function", [
    wrapped(wrapped(sample)), staticmethod(sample), staticmethod(wrapped(sample)), functools.partial(sample),
])  # fmt: skip
def test_wrappers_are_seen_through(function: Any) -> None:
    """A wrapper that names what it wraps, or a staticmethod, has the identity of the bare function."""
    assert Identifier("t", function).identity((), {"order": 7}) == Identifier("t", sample).identity((7,), {})


def test_bound() -> None:
    """A bound task's own parameter is no argument."""

    def task(self: object, order: object) -> None: ...

    identifier = Identifier("t", wrapped(task), bound=True)
    assert identifier.arguments((7,), {}) == {"order": 7}
    assert Identifier("t", lambda *rest: rest, bound=True).arguments((7,), {}) == {"rest": [7]}
    with pytest.raises(ConfigurationError, match="'self'"):
        Identifier("t", task, ["self"], bound=True)


def test_a_wrapped_class_is_no_signature() -> None:
    """A function that names a class as what it wraps, as packages for tasks of classes do, has its own arguments."""

    class Job: ...

    def run(self: object, *args: object, order: object) -> None: ...

    functools.update_wrapper(run, Job, updated=())
    assert Identifier("t", run, ["order"], bound=True).arguments((7,), {"order": 8}) == {"args": [7], "order": 8}


@for_each("task, function, bound, words", [
    ("", sample, False, "non-empty string"), (5, sample, False, "non-empty string, got 5"),
    ("a\0", sample, False, "cannot be used: .*NUL"), ("\ud800", sample, False, "surrogate"),
    ("x" * 300_000, sample, False, "cannot be used"), ("t", 5, False, "5 has no signature"),
    ("t", type, False, "has no signature"), ("t", lambda: 1, True, "no first parameter"),
    ("t", lambda *, a: a, True, "no first parameter"), ("t", lambda **a: a, True, "no first parameter"),
])  # fmt: skip
def test_unusable_task(task: Any, function: Any, bound: bool, words: str) -> None:
    """A task without a usable name or signature, and a bound one that cannot take itself, is a configuration error."""
    with pytest.raises(ConfigurationError, match=words):
        Identifier(task, function, bound=bound)


def user_task(user: Any, note: Any = None, **more: Any) -> None:
    """Stand in for a task about a user."""


def test_names_choose() -> None:
    """Only the named arguments count, in whatever order, or none; later changes of the list do not."""
    one, other = Identifier("t", sample, ["order", "note"]), Identifier("t", sample, ("note", "order"))
    assert one.describe((1, 2), {}) == other.describe((1,), {"amount": 3})
    assert one.describe((1, 2), {}) == '{"arguments":{"note":null,"order":1},"task":"t"}'
    assert one.identity((1,), {}) != one.identity((2,), {})
    assert one.both((1, 2), {})[1] != one.both((1, 3), {})[1]
    assert one.both((1, 2), {})[1] == Identifier("t", sample).both((1, 2), {})[1]
    names = ["order"]
    identifier = Identifier("t", sample, names)
    before = identifier.identity((1, 2), {})
    names.append("amount")
    assert identifier.identity((1, 2), {}) == before
    empty = Identifier("t", sample, [])
    assert empty.describe((1,), {}) == empty.describe(({1},), {}) == '{"arguments":{},"task":"t"}'


def test_unnamed_values_are_free() -> None:
    """Arguments that do not count need no canonical text, except for the fingerprint."""
    for unique_on in (["order"], lambda order, amount, note: order):
        identifier = Identifier("t", sample, unique_on)
        assert identifier.identity((1, {object()}), {}) == identifier.identity((1,), {})
        with pytest.raises(InvalidPayloadError, match="task 't': amount is of type set"):
            identifier.both((1, {object()}), {})


class Both(dict[str, int]):
    id = 1


class Person:
    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)

    def method(self) -> None: ...


@for_each("path, user", [
    ("user.id", {"id": 7}), ("user.id", Person(id=7)), ("user.id", UserDict(id=7)), ("user.ids.1", {"ids": [6, 7]}),
    ("user.1", (6, 7)), ("user.1", {"1": 7}), ("user.1", {1: 7}), ("user.null.true", {None: {True: 7}}),
    ("user.x", Point(7, 8)), ("user.items", {"items": 7}), ("user.a.b.c", {"a": Person(b={"c": 7})}),
    ("user.0", [7]), ("user.__id", {"__id": 7}), ("user.id", Both(id=7)),
])  # fmt: skip
def test_paths_lead_to_values(path: str, user: object) -> None:
    """A path follows a mapping's key, then an attribute, then a list's index, and its value alone counts."""
    assert Identifier("t", user_task, [path]).describe((user,), {}) == f'{{"arguments":{{"{path}":7}},"task":"t"}}'


@for_each("path, user", [
    ("user.id", defaultdict(int)), ("user.id", None), ("user.id", {"Id": 7}), ("user.copy", {}),
    ("user.method", Person()), ("user.__class__", 7), ("user.__module__", Person()), ("user.2", [6, 7]),
    ("user.-1", [6, 7]), ("user.²", [6, 7, 8]), ("user.\u0661", [6, 7]), ("user.1", "ab"), ("user.id.x", {"id": 7}),
    ("user." + "9" * 5000, [1]), ("more_.id", 7), ("user.nan", {math.nan: 7, (1,): 8}),
])  # fmt: skip
def test_paths_that_lead_nowhere(path: str, user: object) -> None:
    """A path that a call does not have is refused by name: it would make unrelated calls equal."""
    with pytest.raises(InvalidPayloadError) as caught:
        Identifier("shop.pay", user_task, [path]).identity((user,), {})
    assert repr(path) in str(caught.value)
    assert "'shop.pay'" in str(caught.value)
    assert user != {"id": 0}  # since looking adds nothing


def test_callable() -> None:
    """A callable gets all arguments as keywords, may require more, raises its own errors, and its result counts."""
    identifier = Identifier("t", user_task, lambda user, **others: [user["id"], sorted(others)])
    assert identifier.describe(({"id": 7},), {"x": 1}) == '{"task":"t","unique":[7,["note","x"]]}'
    assert identifier.identity(({"id": 7},), {}) == identifier.identity(({"id": 7, "n": 1},), {"note": 5})
    with pytest.raises(InvalidPayloadError, match=r"task 't': the result of unique_on\[0\] is of type set"):
        identifier.identity(({"id": {1}},), {})
    with pytest.raises(KeyError):
        identifier.identity(({},), {})
    more = Identifier("t", user_task, lambda user, note, tenant: tenant)
    assert more.describe((1,), {"tenant": 7}) == '{"task":"t","unique":7}'
    with pytest.raises(TypeError, match="tenant"):
        more.describe((1,), {})
    assert Identifier("t", sample, dict).identity((1,), {}) != Identifier("t", sample).identity((1,), {})


async def later(**_: object) -> int:
    return 1


@for_each("unique_on, words", [
    ("order", "list of names"), (b"order", "list of names"), (5, "list of names"), ({"order"}, "list of names"),
    ({"order": 1}, "list of names"), (iter(["order"]), "list of names"), ([1], "1"), ([None], "None"), ([""], "''"),
    (["order."], "'order.'"), ([".order"], "path"), (["order..id"], "path"), (["note", "note"], "'note' twice"),
    (["oder"], "'oder'.*order, amount, .*note.*did you mean 'order'"), (["amuont.x"], "did you mean 'amount'"),
    (["zzz"], "takes order"), (later, "coroutine"), (lambda order: order, "keywords.*'amount'"),
    (lambda *order: order, "keywords"), (lambda order, amount, note, x: 1, "'x'"),
])  # fmt: skip
def test_unusable_unique_on(unique_on: Any, words: str) -> None:
    """A unique_on that can never work is refused when the task is defined, with the parameters and the nearest name."""
    with pytest.raises(ConfigurationError, match=words) as caught:
        Identifier("shop.pay", sample, unique_on)
    assert "'shop.pay'" in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"'more'.*keywords that it collects"):
        Identifier("t", user_task, ["more"])


def test_limits_of_a_call() -> None:
    """A call's limits are those of its identifier, and a refusal names the task and the argument's path."""
    identifier = Identifier("shop.pay", sample, limits=TextLimits(size=60, depth=3))
    assert identifier.identity(([[1]],), {})
    with pytest.raises(InvalidPayloadError, match=r"task 'shop.pay': order\[0\]\[0\] is nested deeper than 3"):
        identifier.identity(([[[1]]],), {})
    with pytest.raises(InvalidPayloadError, match=r"task 'shop.pay': note takes .* past 60 bytes"):
        identifier.identity((1,), {"note": "x" * 60})
    with pytest.raises(InvalidPayloadError, match=r"task 'shop.pay': order.items\[3\] is of type set"):
        identifier.identity(({"items": [1, 2, 3, {4}]},), {})


BUILDERS: dict[str, Any] = SPECIAL | {
    "dict": lambda pairs: {build(key): build(item) for key, item in pairs},
    "tuple": lambda items: tuple(map(build, items)), "float": float, "timedelta": lambda fields: timedelta(**fields),
    "bytes": bytes.fromhex, "power": lambda pair: pair[0] ** pair[1],
}  # fmt: skip


def build(description: Any) -> object:
    """Return the value that a golden vector describes: plain JSON is itself, {"kind": content} goes to a builder."""
    if isinstance(description, dict):
        ((kind, content),) = description.items()
        return BUILDERS[kind](content)
    return [build(item) for item in description] if isinstance(description, list) else description


GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("identity_v1.json").read_text("utf-8"))


def golden_task(value: object) -> None:
    """Stand in for the task of every golden value."""


def golden_call(order: object, amount: object = 1, *rest: object, note: object = None, **more: object) -> None:
    """Stand in for the task of every golden call."""


@for_each("name, value, text, identity", GOLDEN["values"])
def test_golden_values(name: str, value: object, text: str, identity: str) -> None:
    """The canonical text and the identity of a value never change while the algorithm keeps its name."""
    built = build(value)
    assert canonical(built) == text
    assert Identifier("golden.task", golden_task).identity((built,), {}) == identity


@for_each("name, unique_on, args, kwargs, text, identity", GOLDEN["calls"])
def test_golden_calls(name: str, unique_on: Any, args: Any, kwargs: Any, text: str, identity: str) -> None:
    """The described text and the identity of a call never change while the algorithm keeps its name."""
    identifier = Identifier("golden.call", golden_call, unique_on)
    assert identifier.describe(args, kwargs) == text
    assert identifier.identity(args, kwargs) == identity


def test_golden_file_is_of_this_algorithm() -> None:
    """The golden vectors belong to the algorithm that the module names, and values of other types differ."""
    rows = [(typed(build(value)), text) for _, value, text, _ in GOLDEN["values"]]
    assert len({value for value, _ in rows}) == len({text for _, text in rows})
    assert GOLDEN["algorithm"] == ALGORITHM == "v1"


@for_each("unique_on", [None, ["order"], [], lambda order, **_: order])
def test_scopes_separate_equal_calls(unique_on: Any) -> None:
    """The scope is a part of the identity if it is given, whatever `unique_on` is, and never of the fingerprint."""
    identifier = Identifier("t", sample, unique_on)
    scopes = (None, "a", "b", 'a","task":"t')
    assert len({identifier.identity((7,), {}, scope) for scope in scopes}) == len(scopes)
    assert identifier.identity((7,), {}, None) == identifier.identity((7,), {})
    assert {identifier.both((7,), {}, scope)[1] for scope in scopes} == {identifier.both((7,), {})[1]}
    assert '"scope":"a"' in identifier.describe((7,), {}, "a")
    assert Identifier("t", lambda scope: None).identity(("a",), {}) != Identifier("t", lambda: None).identity(
        (), {}, "a"
    )
