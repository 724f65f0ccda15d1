"""The check of docstrings tells a sentence that has its noun from a sentence whose noun is in another sentence."""

from __future__ import annotations

from checks.prose import NOUNLESS, first_sentence, first_sentences
from tests.cases import for_each

MODULE = '''"""The head. It goes on."""
LIMIT = 3
"""The limit
of all."""
class A:
    """A class: one of many."""
    x: int = 0
    """Its number."""
    async def f(self):
        """What it returns? Nothing."""
        "".join(x)
'''


@for_each("sentence", [
    "And the handler that does the same without FastAPI.",
    "As `Job.tag_lines`.",
    "It was refused.",
    "Its tags, one on each line.",
    "One that a duplicate adds is charged as a new job.",
    "Such a call is repeated.",
    "That of the task's calls, without the parameter for a bound task.",
    "The others are left alone.",
    "The same as a time.",
    "Those of Celery's `apply_async`.",
    "What the store counts the uses by.",
    "Return its first moment after a time.",
    "Return the same for a job that exists.",
    "Return what `make` returns for the app.",
    "Return the object of the app: made once for each event loop, and the running one's.",
    "Release them, in the parent.",
    "Count those with other identities.",
    "Whether it submits the ticks of the schedule.",
    "Send no such one again.",
    "The fragment `light_columns`: the same, with the large fields empty.",
    "The answer of a submission, or the other's.",
])  # fmt: skip
def test_a_sentence_without_its_noun_is_found(sentence: str) -> None:
    """A pronoun at the begin, after the verb, or in place of a thing that no word of the sentence names, is found."""
    assert NOUNLESS.search(sentence)


@for_each("sentence", [
    "Return the value of `make` for the running event loop; call `make` once per loop.",
    "Return the jobs that exist, with those that wait for them.",
    "One compare-and-set on one job, applied if all its conditions hold.",
    "The same job is never written twice.",
    "The other processes of this machine.",
    "Return the client of this process, made once as long as the URL is the same.",
    "Return the mean run time of a task, the same for all figures of a page.",
    "Take a lock with a token of one's own.",
    "Clients whose keys are in each other's slots.",
    "Whether a message had its consumer before.",
    "Explain a job: what happened, and what it waits for.",
])  # fmt: skip
def test_a_sentence_with_its_noun_is_left_alone(sentence: str) -> None:
    """A pronoun for a noun of the same sentence is no fault."""
    assert NOUNLESS.search(sentence) is None


def test_every_docstring_is_read() -> None:
    """Modules, classes, functions and constants have docstrings; their first sentences are read, and no other text."""
    assert sorted(first_sentences(MODULE)) == [
        (1, "The head."), (3, "The limit of all."), (6, "A class: one of many."), (8, "Its number."),
        (10, "What it returns?"),
    ]  # fmt: skip


def test_a_sentence_ends_at_its_full_stop() -> None:
    """A sentence is read across lines, and ends at a full stop, not at one in a number or a name."""
    assert first_sentence("Return `a.b`,\n   at most 0.5 s. Raises.") == "Return `a.b`, at most 0.5 s."
