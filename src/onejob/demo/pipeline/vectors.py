"""Stage three: TF-IDF vectors, as sparse dictionaries of unit length."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from onejob.demo.pipeline.language import terms
from onejob.demo.pipeline.values import Chunk, Vector

T = TypeVar("T")


def batches(items: Sequence[T], size: int) -> list[list[T]]:
    """The items in their order, in lists of ``size``; the last one may be shorter."""
    if size < 1:
        raise ValueError("size must be at least 1")
    return [list(items[at : at + size]) for at in range(0, len(items), size)]


def weigh(chunks: Sequence[Chunk]) -> Vector:
    """The inverse document frequency of every term: the fewer chunks use it, the more it weighs."""
    seen = Counter(term for chunk in chunks for term in sorted(set(terms(chunk["text"]))))
    return {term: round(1 + math.log((1 + len(chunks)) / (1 + count)), 6) for term, count in sorted(seen.items())}


def embed_batch(chunks: Iterable[Chunk], idf: Vector) -> dict[str, Vector]:
    """The vector of each chunk, by the chunk's id; a term that ``idf`` does not know counts for nothing."""
    return {chunk["id"]: _vector(chunk["text"], idf) for chunk in chunks}


def embed(chunks: Sequence[Chunk]) -> dict[str, Vector]:
    """The vectors of all chunks at once."""
    return embed_batch(chunks, weigh(chunks))


def cosine(one: Vector, other: Vector) -> float:
    """How alike two vectors are: 0 when they share no term, 1 when they point the same way."""
    shared = sum(weight * other[term] for term, weight in one.items() if term in other)
    lengths = math.hypot(*one.values()) * math.hypot(*other.values())
    return shared / lengths if lengths else 0.0


def focus(text: str, vector: Vector) -> Vector:
    """The part of a chunk's vector with the terms of one of its sentences."""
    return {term: vector[term] for term in sorted(set(terms(text))) if term in vector}


def _vector(text: str, idf: Vector) -> Vector:
    counts = Counter(term for term in terms(text) if term in idf)
    weights = {term: (1 + math.log(count)) * idf[term] for term, count in sorted(counts.items())}
    length = math.hypot(*weights.values()) or 1.0
    return {term: round(weight / length, 6) for term, weight in weights.items()}
