"""Stage two: cut documents into passages that a reader, and a model, can take in at once."""

import re
from collections.abc import Iterable, Iterator

from onejob.demo.pipeline.language import clauses, plain, sentences
from onejob.demo.pipeline.values import Chunk, Document

_HASH_LINE = re.compile(r"^(#{1,6} .*)$", re.MULTILINE)


def chunk(documents: Iterable[Document], words: int = 120, overlap: int = 20) -> list[Chunk]:
    """Cut documents into chunks of at most ``words`` words.

    A chunk ends where a sentence ends if that is possible, never crosses a heading, and repeats up to ``overlap``
    words of the one before it.
    """
    if not 0 <= overlap < words:
        raise ValueError("overlap must be at least 0 and smaller than words")
    return [passage for document in documents for passage in _passages(document, words, overlap)]


def _passages(document: Document, words: int, overlap: int) -> Iterator[Chunk]:
    name, title = document["name"], document["title"]
    found = [
        (heading, text) for heading, pieces in _sections(document, words) for text in _pack(pieces, words, overlap)
    ]
    for number, (heading, text) in enumerate(found, start=1):
        source = f"{title}, {heading}" if heading else title
        yield {"id": f"{name}#{number}", "document": name, "source": source, "text": text}


def _sections(document: Document, words: int) -> list[tuple[str, list[str]]]:
    sections: list[tuple[str, list[str]]] = [("", [])]
    for block in re.split(r"\n\s*\n", _HASH_LINE.sub(r"\n\1\n", document["text"])):
        text = plain(block)
        if _is_heading(block.strip(), text):
            sections.append(("" if text == document["title"] else text, []))
        else:
            sections[-1][1].extend(_pieces(text, words))
    return sections


def _is_heading(block: str, text: str) -> bool:
    if not text or "\n" in block:
        return False
    return block[0] == "#" or (block[0].isupper() and text[-1].isalnum() and len(text.split()) <= 12)


def _pieces(paragraph: str, words: int) -> Iterator[str]:
    for sentence in sentences(paragraph):
        for piece in clauses(sentence) if _size([sentence]) > words else [sentence]:
            tokens = piece.split()
            yield from (" ".join(tokens[at : at + words]) for at in range(0, len(tokens), words))


def _pack(pieces: list[str], words: int, overlap: int) -> Iterator[str]:
    held: list[str] = []
    for piece in pieces:
        if held and _size([*held, piece]) > words:
            yield " ".join(held)
            while held and (_size(held) > overlap or _size([*held, piece]) > words):
                held = held[1:]
        held = [*held, piece]
    if held:
        yield " ".join(held)


def _size(pieces: list[str]) -> int:
    return sum(len(piece.split()) for piece in pieces)
