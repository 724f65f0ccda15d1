"""The study-plan pipeline of the demo: the guarantees of each of its stages."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from onejob.demo import pipeline
from onejob.demo.pipeline import Card, Chunk, Document, UnusableTextsError
from tests.cases import for_each

TEXTS = Path(pipeline.__file__).parent.parent / "texts"
LINCOLN = "lincoln-papers.txt"


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return pipeline.load(TEXTS)


@pytest.fixture(scope="module")
def chunks(documents: list[Document]) -> list[Chunk]:
    return pipeline.chunk(documents)


@pytest.fixture(scope="module")
def vectors(chunks: list[Chunk]) -> dict[str, pipeline.Vector]:
    return pipeline.embed(chunks)


def document(text: str) -> Document:
    return {"name": "a.txt", "title": "A Title", "text": text}


def passage(text: str, number: int = 1) -> Chunk:
    return {"id": f"a.txt#{number}", "document": "a.txt", "source": "A Title", "text": text}


# load


def test_a_folder_gives_its_texts_by_name_and_nothing_else(tmp_path: Path) -> None:
    """Only ``.txt`` and ``.md`` files with words count, in the order of their names, without those about the folder."""
    files = {
        "b.md": "# Bees\n\nThey hum.",
        "a.TXT": "Ants\n\nThey walk.",
        "c.csv": "x",
        "README.md": "No.",
        "d.txt": "  ",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "folder.txt").mkdir()
    assert [(found["name"], found["title"]) for found in pipeline.load(tmp_path)] == [
        ("a.TXT", "Ants"),
        ("b.md", "Bees"),
    ]


@for_each(
    "content, message",
    [
        (None, "holds no .txt or .md file"),
        (b" \n", "holds no .txt or .md file"),
        (b"caf\xe9", "'a.txt' is not UTF-8 text"),
        (b"x" * 5_000_001, "'a.txt' is larger than 5 MB"),
    ],
)
def test_an_unusable_folder_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    """An empty folder, a file that is not UTF-8, one over 5 MB, and a path that is no folder are refused by name."""
    if content is not None:
        (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UnusableTextsError, match=message):
        pipeline.load(tmp_path)
    with pytest.raises(UnusableTextsError, match="is not a folder"):
        pipeline.load(tmp_path / "a.txt")


# chunk


@for_each("words", [7, 40, 120])
def test_chunks_lose_no_word_and_are_never_too_long(words: int) -> None:
    """Without overlap the chunks of a text, put together, are the text, and none has more words than requested."""
    body = " ".join(f"Sentence {number} has {'many ' * (number % 9)}words; so it goes on." for number in range(60))
    found = pipeline.chunk([document(body)], words=words, overlap=0)
    assert " ".join(chunk["text"] for chunk in found).split() == body.split()
    assert max(len(chunk["text"].split()) for chunk in found) <= words


def test_a_chunk_ends_where_a_sentence_ends() -> None:
    """A sentence that fits is never torn, and a saint or an initial does not end one."""
    body = "In St. John they met J. Smith at noon. He was late. They waited for a long while."
    found = pipeline.chunk([document(body)], words=12, overlap=0)
    assert [chunk["text"] for chunk in found] == [
        "In St. John they met J. Smith at noon. He was late.",
        "They waited for a long while.",
    ]


def test_neighbours_share_their_border() -> None:
    """A chunk begins with the last sentences of the one before it, as many as ``overlap`` words allow."""
    body = "One two three four. Five six seven. Eight nine ten. Eleven twelve."
    found = pipeline.chunk([document(body)], words=8, overlap=3)
    assert [chunk["text"] for chunk in found] == [
        "One two three four. Five six seven.",
        "Five six seven. Eight nine ten. Eleven twelve.",
    ]


def test_a_chunk_stays_under_its_heading() -> None:
    """A heading, plain or Markdown, starts a new chunk and is named in its source; else the title is all."""
    text = "A Title\n\nOpening words.\n\nArticle I\n\nFirst words.\n\n## Part *two*\nSecond [words](http://x)."
    found = pipeline.chunk([document(text)])
    assert [(chunk["source"], chunk["text"]) for chunk in found] == [
        ("A Title", "Opening words."),
        ("A Title, Article I", "First words."),
        ("A Title, Part two", "Second words."),
    ]


def test_an_overlap_as_long_as_a_chunk_is_refused() -> None:
    """Chunks that could not move forward are refused."""
    with pytest.raises(ValueError, match="overlap"):
        pipeline.chunk([document("Words.")], words=10, overlap=10)


# embed


def test_a_vector_has_length_one_and_prefers_rare_terms() -> None:
    """Every vector has unit length, stop words have no weight, and of two terms the rarer weighs more."""
    found = pipeline.embed([passage("the shared lighthouse", 1), passage("the shared harbour", 2)])
    assert all(math.isclose(math.hypot(*vector.values()), 1, abs_tol=1e-4) for vector in found.values())
    assert set(found["a.txt#1"]) == {"shared", "lighthouse"}
    assert found["a.txt#1"]["lighthouse"] > found["a.txt#1"]["shared"]


@for_each("size", [1, 7, 1000])
def test_batches_embed_to_the_same_vectors_as_the_whole(chunks: list[Chunk], size: int) -> None:
    """However the chunks are batched, and whatever JSON did to them on the way, the vectors are the same."""
    idf = json.loads(json.dumps(pipeline.weigh(chunks)))
    parts = [pipeline.embed_batch(json.loads(json.dumps(batch)), idf) for batch in pipeline.batches(chunks, size)]
    assert {name: vector for part in parts for name, vector in part.items()} == pipeline.embed(chunks)


def test_likeness_goes_from_zero_to_one() -> None:
    """Vectors without a common term are 0 alike, a vector and its multiple 1, and an empty one is like nothing."""
    one = {"a": 3.0, "b": 4.0}
    assert pipeline.cosine(one, {"c": 1.0}) == 0
    assert math.isclose(pipeline.cosine(one, {"a": 6.0, "b": 8.0}), 1)
    assert pipeline.cosine(one, {}) == 0


# write cards


def test_the_most_specific_word_is_blanked() -> None:
    """A number precedes a name, a name precedes a plain word, and every occurrence of the answer is blanked."""
    texts = [
        "The Senate shall sit for sixteen hundred and seventy Days in each and every year.",
        "Each keeper of the old tower shall obey the Harbour Master without a word of complaint.",
        "They had a lantern, and when they had it not they made one more Lantern.",
    ]
    found = [passage(text, number) for number, text in enumerate(texts)]
    cards = {card["chunk"]: card for card in pipeline.write_cards(found, pipeline.embed(found), 3)}
    assert [cards[chunk["id"]]["answer"] for chunk in found[:2]] == ["sixteen hundred and seventy", "Harbour Master"]
    assert "lantern" not in cards[found[2]["id"]]["question"].casefold()


def test_cards_do_not_repeat_an_answer_or_exceed_the_count(
    chunks: list[Chunk], vectors: dict[str, pipeline.Vector]
) -> None:
    """One batch has at most as many cards as requested, each with another answer."""
    cards = pipeline.write_cards_for(chunks, vectors, 25)
    assert len({card["answer"].casefold() for card in cards}) == len(cards) == 25
    assert pipeline.write_cards_for(chunks, vectors, 0) == []


def test_a_chunk_without_a_card_is_preferred() -> None:
    """The second card is from another chunk, even when the first one has a better sentence left."""
    rich = (
        "The tower shall be kept for seventy Years without a break. Each crew shall carry eighty Barrels of whale oil."
    )
    poor = "They walked along the beach for a while and then they went on to the village."
    found = [passage(rich, 1), passage(poor, 2)]
    cards = pipeline.write_cards(found, pipeline.embed(found), 3)
    assert [card["chunk"] for card in cards] == ["a.txt#1", "a.txt#2", "a.txt#1"]


@for_each("count", [0, 1, 10, 37])
def test_shares_add_up(chunks: list[Chunk], count: int) -> None:
    """However many groups share the cards, no card is lost or invented, and a larger group never gets fewer."""
    groups = [chunks[:5], chunks[5:30], chunks[30:30], chunks[30:]]
    parts = pipeline.share(count, groups)
    assert sum(parts) == count
    assert parts[2] == 0
    assert parts[0] <= parts[1] <= parts[3]


# check cards


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


@for_each(
    "question, answer, reason",
    [
        (GOOD["question"].replace(pipeline.BLANK, "lantern"), "lantern", "the question has no blank"),
        (GOOD["question"], " ", "the answer is empty"),
        (GOOD["question"].replace("The keeper", f"{pipeline.BLANK} keeper", 1), "The", "the answer is a stop word"),
        (f"The keeper of the {pipeline.BLANK} lights.", "tower", "the question is too short"),
        (GOOD["question"].replace("sailor", "lantern"), "lantern", "the question gives the answer away"),
        (GOOD["question"], "candle", "the answer is not in the chunk"),
        (GOOD["question"].replace("dusk", "dawn"), "lantern", "the question is not a sentence of the chunk"),
    ],
)
def test_a_bad_card_is_rejected_with_its_reason(question: str, answer: str, reason: str) -> None:
    """A card that cannot be answered, is too easy or is untrue to its chunk is rejected, and the reason says which."""
    bad: Card = {**GOOD, "id": "bad", "question": question, "answer": answer}
    assert check(bad) == {"accepted": [], "rejected": [{"card": bad, "reason": reason}]}
    (unknown,) = check({**GOOD, "chunk": "elsewhere"})["rejected"]
    assert unknown["reason"] == "the answer is not in the chunk"


def test_the_second_of_two_like_cards_is_rejected() -> None:
    """Of cards that say almost the same the first stays, and the reason names it."""
    repeat: Card = {
        **GOOD,
        "id": "repeat",
        "question": GOOD["question"].replace("the coast is.", "the coast is thankful."),
    }
    checked = check(GOOD, repeat)
    assert checked["accepted"] == [GOOD]
    assert checked["rejected"] == [{"card": repeat, "reason": "the card says almost the same as good"}]


# the whole


def test_the_shipped_texts_make_a_plan_worth_showing(chunks: list[Chunk], vectors: dict[str, pipeline.Vector]) -> None:
    """Every shipped text yields cards, and nine in ten of them pass the check."""
    cards = pipeline.write_cards(chunks, vectors, 40)
    accepted = pipeline.check_cards(cards, chunks, vectors)["accepted"]
    assert len(accepted) >= 36
    assert {card["chunk"].partition("#")[0] for card in accepted} == {path.name for path in TEXTS.glob("*.txt")}
    nation = next(card for card in accepted if card["question"].startswith("Four score and seven years ago"))
    assert (nation["answer"], nation["chunk"].partition("#")[0]) == ("nation", LINCOLN)


@for_each("count", [24, 40])
def test_no_card_has_an_offensive_word(chunks: list[Chunk], vectors: dict[str, pipeline.Vector], count: int) -> None:
    """The shipped texts are old, but no card repeats their words for enslaved people."""
    cards = pipeline.write_cards(chunks, vectors, count)
    assert len(cards) == count
    assert [card for card in cards if re.search("slave|savage|negro", json.dumps(card), re.IGNORECASE)] == []


def test_every_value_is_plain_json(documents: list[Document], chunks: list[Chunk]) -> None:
    """Each stage gives the same from values that went through JSON as from those that did not."""
    vectors = pipeline.embed(chunks)
    cards = pipeline.write_cards(chunks, vectors, 20)
    checked = pipeline.check_cards(cards, chunks, vectors)
    again = json.loads(json.dumps([documents, chunks, vectors, cards, checked]))
    assert again == [documents, chunks, vectors, cards, checked]
    assert pipeline.chunk(again[0]) == chunks
    assert pipeline.write_cards(again[1], again[2], 20) == cards
    assert pipeline.check_cards(again[3], again[1], again[2]) == checked


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
