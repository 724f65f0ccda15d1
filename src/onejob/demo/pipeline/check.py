"""Stage five: keep the cards that teach something true, and say why the others do not."""

from collections.abc import Iterable, Sequence

from onejob.demo.pipeline.language import STOP_WORDS, words
from onejob.demo.pipeline.values import BLANK, Card, Checked, Chunk, Vector
from onejob.demo.pipeline.vectors import cosine, focus

SHORTEST = 7
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
        "the question is too short": len(asked) < SHORTEST,
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
