"""The study-plan pipeline of the demo: the guarantees of each of its stages."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from onejob.demo import pipeline
from onejob.demo.pipeline import Card, Chunk, Document, UnusableTextsError
from tests.cases import for_each

TEXTS = Path(pipeline.__file__).parent / "texts"
LINCOLN = "lincoln-papers.txt"


@pytest.fixture(scope="module")
def chunks() -> list[Chunk]:
    return pipeline.chunk(pipeline.load(TEXTS))


def document(text: str) -> Document:
    return {"name": "a.txt", "title": "A Title", "text": text}


def passage(text: str, number: int = 1) -> Chunk:
    return {"id": f"a.txt#{number}", "document": "a.txt", "source": "A Title", "text": text}


def test_a_folder_gives_its_texts_by_name_and_nothing_else(tmp_path: Path) -> None:
    """Only ``.txt`` and ``.md`` files with words count, in the order of their names, without those about the folder."""
    files = {
        "b.md": "# Bees\n\nThey hum.",
        "a.TXT": "Ants\n\nThey walk.",
        "c.csv": "x",
        "README.md": "No.",
        "d.txt": " ",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "folder.txt").mkdir()
    found = [(each["name"], each["title"]) for each in pipeline.load(tmp_path)]
    assert found == [("a.TXT", "Ants"), ("b.md", "Bees")]


@for_each("content, message", [
    (None, "holds no .txt or .md file"), (b" \n", "holds no .txt or .md file"),
    (b"caf\xe9", "'a.txt' is not UTF-8 text"), (b"x" * 5_000_001, "'a.txt' is larger than 5 MB"),
])  # fmt: skip
def test_an_unusable_folder_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    """An empty folder, a file that is not UTF-8, one over 5 MB, and a path that is no folder are refused by name."""
    if content is not None:
        (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UnusableTextsError, match=message):
        pipeline.load(tmp_path)
    with pytest.raises(UnusableTextsError, match="is not a folder"):
        pipeline.load(tmp_path / "a.txt")


@for_each("words", [7, 40, 120])
def test_chunks_lose_no_word_and_are_never_too_long(words: int) -> None:
    """Chunks without overlap are the text, none has more words than requested, and each ends where a sentence ends."""
    body = " ".join(f"Sentence {number} has {'many ' * (number % 9)}words; so it goes on." for number in range(60))
    found = pipeline.chunk([document(body)], words=words, overlap=0)
    assert " ".join(chunk["text"] for chunk in found).split() == body.split()
    assert max(len(chunk["text"].split()) for chunk in found) <= words
    body = "In St. John they met J. Smith at noon. He was late. They waited for a long while."
    found = pipeline.chunk([document(body)], words=12, overlap=0)
    assert [chunk["text"].partition(" ")[0] for chunk in found] == ["In", "They"]


TEXT = "The keeper of the tower lights the lantern at dusk, and every sailor on the coast is thankful for that light."
GOOD: Card = {
    "id": "good",
    "question": f"The keeper of the tower lights the {pipeline.BLANK} at dusk, and every sailor on the coast is.",
    "answer": "lantern",
    "source": "A Title",
    "chunk": "a.txt#1",
}


def check(*cards: Card) -> pipeline.Checked:
    found = [passage(TEXT)]
    return pipeline.check_cards(cards, found, pipeline.embed(found))


@for_each("question, answer, reason", [
    (GOOD["question"].replace(pipeline.BLANK, "lantern"), "lantern", "the question has no blank"),
    (GOOD["question"], " ", "the answer is empty"),
    (GOOD["question"].replace("The keeper", f"{pipeline.BLANK} keeper", 1), "The", "the answer is a stop word"),
    (f"The keeper of the {pipeline.BLANK} lights.", "tower", "the question is too short"),
    (GOOD["question"].replace("sailor", "lantern"), "lantern", "the question gives the answer away"),
    (GOOD["question"], "candle", "the answer is not in the chunk"),
    (GOOD["question"].replace("dusk", "dawn"), "lantern", "the question is not a sentence of the chunk"),
])  # fmt: skip
def test_a_bad_card_is_rejected_with_its_reason(question: str, answer: str, reason: str) -> None:
    """A card that cannot be answered, is too easy or is untrue to its chunk is rejected, and the reason says which."""
    bad: Card = {**GOOD, "id": "bad", "question": question, "answer": answer}
    assert check(bad) == {"accepted": [], "rejected": [{"card": bad, "reason": reason}]}
    (unknown,) = check({**GOOD, "chunk": "elsewhere"})["rejected"]
    assert unknown["reason"] == "the answer is not in the chunk"


def test_the_shipped_texts_make_a_plan_worth_showing(chunks: list[Chunk]) -> None:
    """Every shipped text yields cards, nine in ten of them pass the check, and none has an offensive word."""
    vectors = pipeline.embed(chunks)
    cards = pipeline.write_cards(chunks, vectors, 40)
    assert [card for card in cards if re.search("slave|savage|negro", json.dumps(card), re.IGNORECASE)] == []
    accepted = pipeline.check_cards(cards, chunks, vectors)["accepted"]
    assert len(accepted) >= 36
    assert {card["chunk"].partition("#")[0] for card in accepted} == {path.name for path in TEXTS.glob("*.txt")}
    nation = next(card for card in accepted if card["question"].startswith("Four score and seven years ago"))
    assert (nation["answer"], nation["chunk"].partition("#")[0]) == ("nation", LINCOLN)


def test_the_same_texts_give_the_same_cards_in_every_process() -> None:
    """Nothing hangs on the order of a set: processes with different hash seeds write the same cards."""
    script = (
        "import json, pathlib, onejob.demo.pipeline as p\n"
        f"chunks = p.chunk(p.load(pathlib.Path({str(TEXTS)!r})))\n"
        "vectors = p.embed(chunks)\n"
        "print(json.dumps([vectors, p.write_cards(chunks, vectors, 20)]))\n"
    )
    path = os.pathsep.join(sys.path)
    seeds = ({**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path} for seed in ("1", "2"))
    one, other = (subprocess.check_output([sys.executable, "-c", script], env=env) for env in seeds)
    assert one == other
