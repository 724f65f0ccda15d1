"""What the stages hand to each other: dictionaries that JSON can hold."""

from typing import TypeAlias, TypedDict

BLANK = "____"

Vector: TypeAlias = dict[str, float]


class Document(TypedDict):
    """One text: its file name, the title in its first line, and its words."""

    name: str
    title: str
    text: str


class Chunk(TypedDict):
    """A passage of a document; ``source`` is its place in the document."""

    id: str
    document: str
    source: str
    text: str


class Card(TypedDict):
    """A sentence with a blank, the words that fill it, and the chunk that proves it."""

    id: str
    question: str
    answer: str
    source: str
    chunk: str


class Rejection(TypedDict):
    """A card that is not good enough, and why."""

    card: Card
    reason: str


class Checked(TypedDict):
    """The accepted and the rejected cards."""

    accepted: list[Card]
    rejected: list[Rejection]
