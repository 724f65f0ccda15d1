"""From a folder of texts to study cards: pure, deterministic stages whose values are plain JSON.

The stages are `load`, `chunk`, `embed`, `write_cards` and `check_cards`. Two of them also come in batches (`weigh` then
`embed_batch`; `share` then `write_cards_for`), so that a caller can meter, keep or repeat each batch by itself.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypedDict, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

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


STOP_WORDS = frozenset(
    """
    a about above after against ago all also although always am among an and another any are around as at away
    be became because become been before being below best better between both but by came can cannot come could
    did do does doing done down during each either else ever every far few for from further gave get give given
    go goes going good had has hath have having he hence her here hereby herein hers herself him himself his how
    however i if in indeed into is it its itself just large last least less let like long made make makes making
    many may me might mine more most much must my myself namely nay near needs neither never new next no nor not
    nothing now of off often old on once one only or other others otherwise ought our ours ourselves out over
    own part per perhaps place proper put quite rather re said same see seem seems shall she should since so
    some somewhat such take than that the thee their theirs them themselves then thence there thereby therefore
    therein thereof therewith these they thing things this those thou though through throughout thus till time
    times to together too toward towards under unless until up upon us use used uses very was way we well were
    what whatever whatsoever when whence where whereas whereby wherein whereof whether which while who whole
    whom whose why will with within without would yet you your yours
    """.split()
)

_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
_MARKUP = re.compile(r"^(?:#{1,6}|[-*+>])\s+|[*`]+|!?\[([^\]]*)\]\([^)]*\)", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<!\bSt)(?<!\bMr)(?<!\bDr)(?<!\b[A-Z])[.?!][\"\u201d\u2019)]*\s+(?=[\"\u201c(A-Z])")
_CLAUSE_END = re.compile(r"[;:—]+\s*")


def words(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return [word.casefold() for word in _WORD.findall(text)]


def terms(text: str) -> list[str]:
    """The words that carry meaning: no stop words, nothing shorter than three letters."""
    return [word for word in words(text) if len(word) > 2 and word not in STOP_WORDS]


def plain(block: str) -> str:
    """A block of text on one line, without Markdown's signs."""
    return " ".join(_MARKUP.sub(r"\1", block.strip()).split())


def sentences(text: str) -> list[str]:
    """A text cut behind its full stops, question and exclamation marks, but not behind *St.* or an initial."""
    return _cut(text, _SENTENCE_END)


def clauses(text: str) -> list[str]:
    """A text cut behind its semicolons, colons and dashes."""
    return _cut(text, _CLAUSE_END)


def _cut(text: str, end: re.Pattern[str]) -> list[str]:
    cuts = [0, *(match.end() for match in end.finditer(text)), len(text)]
    return [text[a:b].strip() for a, b in pairwise(cuts) if text[a:b].strip()]


MAX_BYTES = 5_000_000
SUFFIXES = (".txt", ".md")
NOT_TEXTS = ("readme", "sources", "license", "notice")


class UnusableTextsError(ValueError):
    """Nothing here that a study plan could be made of; the message says what to change."""


def load(folder: Path) -> list[Document]:
    """Read every ``.txt`` and ``.md`` file of a folder by name; a README, SOURCES, LICENSE or NOTICE is no text."""
    if not folder.is_dir():
        raise UnusableTextsError(f"{folder.name!r} is not a folder")
    documents = [_document(path.name, _read(path)) for path in sorted(folder.iterdir()) if _is_text(path)]
    readable = [document for document in documents if document["text"]]
    if not readable:
        raise UnusableTextsError(f"the folder {folder.name!r} holds no .txt or .md file with words in it")
    return readable


def _is_text(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in SUFFIXES and path.stem.lower() not in NOT_TEXTS


def _read(path: Path) -> str:
    if path.stat().st_size > MAX_BYTES:
        raise UnusableTextsError(f"{path.name!r} is larger than {MAX_BYTES // 1_000_000} MB")
    try:
        return path.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise UnusableTextsError(f"{path.name!r} is not UTF-8 text") from error


def _document(name: str, text: str) -> Document:
    first = plain(text.partition("\n")[0])
    return {"name": name, "title": first if 0 < len(first) <= 100 else name, "text": text}


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


SHORTEST, LONGEST = 9, 45

_OPENING = re.compile(r"^(?:and|but|that|yet),?\s(?!to\b)", re.IGNORECASE)
_SUBJECT = re.compile(
    r"(?:[A-Z]|(?:a|all|an|any|each|every|he|if|in|it|neither|no|she|such|that|the|there|these|they|this|those|we)\b)"
)
_TENS = r"twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|million|score"
_SMALL = rf"[Oo]ne|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|{_TENS}"
_NUMBER = rf"(?:{_SMALL}|thirds?|fourths?|fifths?|eighths?|\d[\d,.]*\d|\d)"
_BEFORE = r"a|an|the|of|by|in|with|no|any|every|our|their|his|its"
_AFTER = r"[,.;:?!]|$| (?:of|to|in|by|on|for|and|or|is|are|was|were|shall|which|who|that|with|from|as)\b"
_KINDS = (
    (2.0, re.compile(rf"\b{_NUMBER}(?:[ -](?:and )?{_NUMBER})*\b")),
    (1.2, re.compile(r"(?<!^)\b[A-Z][\w\u2019'-]*[a-z](?: [A-Z][\w\u2019'-]*[a-z]){0,2}")),
    (1.1, re.compile(rf"\b(?:{_BEFORE}) ([a-z][a-z\u2019'-]{{3,}})(?={_AFTER})")),
    (0.7, re.compile(r"\b[a-z][a-z\u2019'-]{3,}")),
)
_NOUN = re.compile(r"(?:tion|sion|ment|ness|ance|ence|ship|ity|ism|ure|age|ice|or|cy|ty)s?$")
_NOT_NOUN = re.compile(r"(?:ly|ing|ed|ous|able|ible|ful|ive|al|ate|ize|ise|est|en)$")


class Draft(NamedTuple):
    """A card that may be written, and how well it would serve; drafts compare by that."""

    score: float
    id: str
    answer: str
    card: Card
    about: Vector


def write_cards(chunks: Sequence[Chunk], vectors: dict[str, Vector], count: int) -> list[Card]:
    """Write up to ``count`` cards, each document giving its share."""
    names = list(dict.fromkeys(chunk["document"] for chunk in chunks))
    groups = [[chunk for chunk in chunks if chunk["document"] == name] for name in names]
    shares = zip(groups, share(count, groups), strict=True)
    return [card for group, part in shares for card in write_cards_for(group, vectors, part)]


def share(count: int, groups: Sequence[Sequence[Chunk]]) -> list[int]:
    """Divide ``count`` cards among groups of chunks in proportion to their number; the parts add up to ``count``."""
    total = sum(len(group) for group in groups) or 1
    ends = [round(count * sum(len(group) for group in groups[: at + 1]) / total) for at in range(len(groups))]
    return [end - start for start, end in pairwise([0, *ends])]


def write_cards_for(chunks: Sequence[Chunk], vectors: dict[str, Vector], count: int) -> list[Card]:
    """Write up to ``count`` cards from some chunks: the most telling first, then those that say something else."""
    drafts = [draft for chunk in chunks for draft in _drafts(chunk, vectors[chunk["id"]])]
    chosen: list[Card] = []
    while drafts and len(chosen) < count:
        best = max(drafts)
        chosen.append(best.card)
        drafts = [_after(best, draft) for draft in drafts if draft.answer != best.answer]
    return chosen


def _after(chosen: Draft, draft: Draft) -> Draft:
    crowded = 0.5 if draft.card["chunk"] == chosen.card["chunk"] else 1.0
    return draft._replace(score=draft.score * crowded * (1 - cosine(draft.about, chosen.about)))


def _drafts(chunk: Chunk, vector: Vector) -> Iterator[Draft]:
    size = math.sqrt(len(vector))
    for statement, worth in _statements(chunk["text"]):
        about = focus(statement, vector)
        score, answer = max(_answers(statement, about), default=(0.0, ""))
        telling = sorted(about.values())[-5:]
        if answer:
            card = _card(chunk, statement, answer)
            yield Draft(worth * size * (score + sum(telling) / 5), card["id"], answer.casefold(), card, about)


def _statements(text: str) -> Iterator[tuple[str, float]]:
    for sentence in sentences(text):
        whole = len(sentence.split()) <= LONGEST
        for part in [sentence] if whole else clauses(sentence):
            statement = _OPENING.sub("", _bare(part))
            torn = text[0].islower() and text.startswith(part)
            if SHORTEST <= len(statement.split()) <= LONGEST and _SUBJECT.match(statement) and not torn:
                yield statement[0].upper() + statement[1:], 1.0 if whole else 0.8


def _bare(part: str) -> str:
    bare = part.strip('"\u201c\u201d —;:,')
    return bare if bare.count('"') % 2 == 0 else bare.replace('"', "")


def _answers(statement: str, about: Vector) -> Iterator[tuple[float, str]]:
    for bonus, kind in _KINDS:
        for answer in kind.findall(statement):
            weights = [about.get(term, 0.0) for term in terms(answer)]
            if weights and min(weights) > 0:
                times = statement.casefold().count(answer.casefold())
                yield bonus * _fitness(answer) * sum(weights) / len(weights) / times, answer


def _fitness(answer: str) -> float:
    last = answer.rpartition(" ")[2]
    return 1.25 if _NOUN.search(last) else 0.5 if _NOT_NOUN.search(last) else 1.0


def _card(chunk: Chunk, statement: str, answer: str) -> Card:
    question = re.sub(rf"(?i)(?<![\w-]){re.escape(answer)}(?![\w-])", BLANK, statement)
    question = question if question[-1] in ".?!" else question + "."
    digest = hashlib.sha256(f"{chunk['id']}\n{question}".encode()).hexdigest()[:12]
    return {"id": digest, "question": question, "answer": answer, "source": chunk["source"], "chunk": chunk["id"]}


SHORTEST_QUESTION = 7
SAME = 0.7


def check_cards(cards: Iterable[Card], chunks: Sequence[Chunk], vectors: dict[str, Vector]) -> Checked:
    """Accept the cards that are true to their chunk, answerable and not yet there; reject the others with a reason."""
    texts = {chunk["id"]: chunk["text"] for chunk in chunks}
    checked: Checked = {"accepted": [], "rejected": []}
    for card in cards:
        reason = _flaw(card, texts.get(card["chunk"], "")) or _repetition(card, checked["accepted"], vectors)
        if reason:
            checked["rejected"].append({"card": card, "reason": reason})
        else:
            checked["accepted"].append(card)
    return checked


def _flaw(card: Card, text: str) -> str:
    asked, answer = words(card["question"].replace(BLANK, " ")), words(card["answer"])
    flaws = {
        "the question has no blank": BLANK not in card["question"],
        "the answer is empty": not answer,
        "the answer is a stop word": bool(answer) and STOP_WORDS.issuperset(answer),
        "the question is too short": len(asked) < SHORTEST_QUESTION,
        "the question gives the answer away": bool(answer) and _within(answer, asked),
        "the answer is not in the chunk": not _within(answer, words(text)),
        "the question is not a sentence of the chunk": not _within(_filled(card), words(text)),
    }
    return next((reason for reason, found in flaws.items() if found), "")


def _filled(card: Card) -> list[str]:
    return words(card["question"].replace(BLANK, card["answer"]))


def _within(part: Sequence[str], whole: Sequence[str]) -> bool:
    return f" {' '.join(part)} " in f" {' '.join(whole)} "


def _repetition(card: Card, others: Iterable[Card], vectors: dict[str, Vector]) -> str:
    about = _about(card, vectors)
    repeats = (other for other in others if cosine(about, _about(other, vectors)) >= SAME)
    return next((f"the card says almost the same as {repeat['id']}" for repeat in repeats), "")


def _about(card: Card, vectors: dict[str, Vector]) -> Vector:
    return focus(card["question"].replace(BLANK, card["answer"]), vectors.get(card["chunk"], {}))
