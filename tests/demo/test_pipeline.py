"""The study plan of the demo: the laws of its stages, and its progress."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from onejob import RunningJob
from onejob.celery.app_state import app_state_of
from onejob.celery.run import Run
from onejob.demo import pipeline
from onejob.demo.pipeline import BLANK, Card, UnusableTextsError
from onejob.jobs.text_limits import TextLimits
from tests.cases import for_each

TEXTS = Path(pipeline.__file__).parent / "texts"
CARD = Card(question=f"The keeper of the tower lights the {BLANK} at dusk.", answer="lantern", source="A Title")


def test_a_folder_gives_its_texts_by_name_and_nothing_else(tmp_path: Path) -> None:
    """Only ``.txt`` and ``.md`` files with words count, in the order of their names, without those about the folder."""
    files = {"b.md": "# Bees\n\nHum.", "a.TXT": "Ants", "c.csv": "x", "README.md": "No.", "d.txt": " "}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "folder.txt").mkdir()
    assert list(pipeline.load(tmp_path).items()) == [("a.TXT", "Ants"), ("b.md", "# Bees\n\nHum.")]


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


def test_chunks_are_paragraphs_below_their_headings() -> None:
    """The paragraphs of a text are its chunks, and each names the title and the heading that it is below."""
    text = "# Bees\n\nThey\nhum.\n\n## Hives\n\nThey are full.\n\nIn winter\n\nThey sleep."
    chunks = pipeline.chunk({"b.md": text, "a.md": "Ants\n\nThey walk."})
    assert [(each["document"], each["source"], each["text"]) for each in chunks] == [
        ("b.md", "Bees", "They hum."), ("b.md", "Bees, Hives", "They are full."),
        ("b.md", "Bees, In winter", "They sleep."), ("a.md", "Ants", "They walk."),
    ]  # fmt: skip


def test_an_answer_is_a_long_word_that_few_chunks_contain() -> None:
    """The answer stands once in its sentence; a longer word counts for more, and one of many chunks for less."""
    text = "The lantern keeper lights every lantern near the harbour of the bright island."
    spread = {"lantern": 1, "keeper": 3, "lights": 1, "harbour": 9, "bright": 2, "island": 2}
    (card,) = pipeline.write_cards([{"document": "a.txt", "source": "A Title", "text": text}], spread, 8)
    assert card == {"question": text.replace("lights", BLANK), "answer": "lights", "source": "A Title"}


@for_each("change, reason", [
    ({}, None),
    ({"question": "The keeper of the tower lights the lantern at dusk."}, "the question has no blank"),
    ({"question": f"They light the {BLANK}."}, "the question is too short"),
    ({"answer": "dusk"}, "the question gives the answer away"),
    ({"question": f"One {BLANK} is on the roof of that tower.", "answer": "candle"}, "another card has this answer"),
])  # fmt: skip
def test_a_bad_card_is_rejected_with_its_reason(change: dict[str, str], reason: str | None) -> None:
    """A card that cannot be answered, is too easy or repeats an answer is rejected, and the reason says which."""
    other: Card = {**CARD, "answer": "candle"}
    card: Card = {**CARD, **change}  # type: ignore[typeddict-item]
    assert pipeline.check_cards([other, card]) == (([other], [(card, reason)]) if reason else ([other, card], []))


def test_the_shipped_texts_make_the_same_plan_in_every_process() -> None:
    """Each shipped text yields eight cards, none of which is rejected or offensive, whatever the seed of hashes."""
    script = (
        "import json, pathlib, onejob.demo.pipeline as p\n"
        f"chunks = p.chunk(p.load(pathlib.Path({str(TEXTS)!r})))\n"
        "names, spread = {each['document']: 0 for each in chunks}, p.embed(chunks)\n"
        "cards = [p.write_cards([c for c in chunks if c['document'] == name], spread, 8) for name in names]\n"
        "print(json.dumps([spread, cards, p.check_cards(sum(cards, []))[1]]))\n"
    )
    path = os.pathsep.join(sys.path)
    seeds = ({**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path} for seed in ("1", "2"))
    one, other = (subprocess.check_output([sys.executable, "-c", script], env=env, text=True) for env in seeds)
    assert one == other
    _, cards, rejected = json.loads(one)
    assert ([len(each) for each in cards], rejected) == ([8, 8, 8], [])
    assert not re.search("slave|savage|negro", json.dumps(cards), re.IGNORECASE)
    score = next(card for card in cards[2] if card["question"].startswith("Four score and seven years ago"))
    assert score["answer"] == "proposition"
    assert "Gettysburg Address" in score["source"]


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("ONEJOB_DEMO_FOLDER", str(tmp_path))
    monkeypatch.delitem(sys.modules, "onejob.demo.app", raising=False)
    loaded = import_module("onejob.demo.app")
    yield loaded
    app_state_of(loaded.app).ledger.close()
    del sys.modules["onejob.demo.app"]


def test_progress_never_goes_back(demo: Any) -> None:
    """After a crash, progress continues from the completed calls, and never decreases."""
    ledger = app_state_of(demo.app).ledger
    job_id = demo.study_plan.delay("plan").id

    def run(*calls: str) -> list[int]:
        job = ledger.claim(job_id, nonce=f"nonce-{len(calls)}", node="node").job
        assert job is not None
        plan = demo._Plan(RunningJob(Run(job, ledger, TextLimits())))
        seen: list[int] = []
        for name in calls:
            plan.call("embed", name, len, "value")
            plan.start_stage("embed")
            seen.append(json.loads(ledger.get(job_id).progress or "{}")["done"])
        ledger.crash(job, "its worker died", "{}")
        return seen

    assert run("embed 1", "embed 2") == [1, 2]
    assert run("embed 1", "embed 2", "embed 3") == [2, 2, 3]
    assert demo.provider.calls() == {job_id: (3, 3)}
