"""Stage four: write cloze cards. The best sentences become questions, their most telling words become answers."""

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from onejob.demo.pipeline.language import clauses, sentences, terms
from onejob.demo.pipeline.values import BLANK, Card, Chunk, Vector
from onejob.demo.pipeline.vectors import cosine, focus

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
