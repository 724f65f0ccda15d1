"""The pipeline of the demo: from a folder of texts to study cards, in deterministic stages with plain JSON values."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypedDict

BLANK = "____"
MAX_BYTES = 5_000_000
SUFFIXES = (".txt", ".md")
NOT_TEXTS = ("readme", "sources", "license", "notice")
SHORTEST, LONGEST = 9, 32
"""The least and the most words in the sentence of a card; a shorter line is a heading."""

_PARAGRAPH = re.compile(r"\n\s*\n")
_SENTENCE = re.compile(r"(?<=[.?!;])\s+(?=[A-Z])")
_KEY_WORD = re.compile(r"(?<!\S)[a-z]{6,}(?=[\s.,;:?!]|$)")


class Chunk(TypedDict):
    """A paragraph of a document; ``source`` is the document's title and the heading above the paragraph."""

    document: str
    source: str
    text: str


class Card(TypedDict):
    """A sentence with a blank, and the word that fills it."""

    question: str
    answer: str
    source: str


class UnusableTextsError(ValueError):
    """A study plan cannot be made of this folder; the message says what to change."""


def load(folder: Path) -> dict[str, str]:
    """Read every ``.txt`` and ``.md`` file of a folder by name; a README, SOURCES, LICENSE or NOTICE is no text."""
    if not folder.is_dir():
        raise UnusableTextsError(f"{folder.name!r} is not a folder")
    texts = {path.name: _read(path) for path in sorted(folder.iterdir()) if _is_text(path)}
    if not any(texts.values()):
        raise UnusableTextsError(f"the folder {folder.name!r} holds no .txt or .md file with words in it")
    return {name: text for name, text in texts.items() if text}


def _is_text(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in SUFFIXES and path.stem.lower() not in NOT_TEXTS


def _read(path: Path) -> str:
    if path.stat().st_size > MAX_BYTES:
        raise UnusableTextsError(f"{path.name!r} is larger than {MAX_BYTES // 1_000_000} MB")
    try:
        return path.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise UnusableTextsError(f"{path.name!r} is not UTF-8 text") from error


def chunk(texts: Mapping[str, str]) -> list[Chunk]:
    """Cut texts into paragraphs. The first line of a text is its title."""
    return [each for document, text in texts.items() for each in _paragraphs(document, text)]


def _paragraphs(document: str, text: str) -> Iterator[Chunk]:
    first, _, body = text.partition("\n")
    title = source = first.strip("# ")
    for block in _PARAGRAPH.split(body):
        paragraph = " ".join(block.split())
        if paragraph.startswith("#") or (paragraph[-1:].isalnum() and len(paragraph.split()) < SHORTEST):
            source = f"{title}, {paragraph.strip('# ')}"
        elif paragraph:
            yield {"document": document, "source": source, "text": paragraph}


def embed(chunks: Iterable[Chunk]) -> dict[str, int]:
    """Return how many of the chunks contain each key word."""
    return dict(Counter(word for each in chunks for word in sorted(set(_KEY_WORD.findall(each["text"])))))


def write_cards(chunks: Iterable[Chunk], spread: Mapping[str, int], count: int) -> list[Card]:
    """Write up to ``count`` cards, one for a sentence; the best answers are long words that few chunks contain."""
    drafts = [draft for each in chunks for draft in _drafts(each, spread)]
    by_answer = {card["answer"]: card for *_, card in sorted(drafts, key=lambda draft: draft[:-1])}
    return [*by_answer.values()][::-1][:count]


def _drafts(chunk: Chunk, spread: Mapping[str, int]) -> Iterator[tuple[int, int, str, Card]]:
    """Yield each suitable sentence as a score and a card; a long, rare answer and a short sentence score best."""
    for sentence in _SENTENCE.split(chunk["text"]):
        words = [word for word in _KEY_WORD.findall(sentence) if sentence.casefold().count(word) == 1]
        if words and sentence[0].isupper() and SHORTEST <= len(sentence.split()) <= LONGEST:
            score, answer = max((len(word) - spread[word], word) for word in words)
            card = Card(question=sentence.replace(answer, BLANK), answer=answer, source=chunk["source"])
            yield score, -len(sentence), answer, card


def check_cards(cards: Iterable[Card]) -> tuple[list[Card], list[tuple[Card, str]]]:
    """Return the cards that can be answered and say something new, and the rejected ones with the reasons."""
    accepted: list[Card] = []
    rejected: list[tuple[Card, str]] = []
    for card in cards:
        flaws = {
            "the question has no blank": BLANK not in card["question"],
            "the question is too short": len(card["question"].split()) < SHORTEST,
            "the question gives the answer away": card["answer"] in card["question"].casefold(),
            "another card has this answer": any(card["answer"] == each["answer"] for each in accepted),
        }
        reason = next((flaw for flaw, found in flaws.items() if found), None)
        if reason is None:
            accepted.append(card)
        else:
            rejected.append((card, reason))
    return accepted, rejected
