"""The documents of the two customers, and how a document is cut into chunks."""

from __future__ import annotations

SUBJECTS = tuple("tides bridges glaciers comets orchards harbours lanterns rivers clocks forests".split())
VERBS = tuple("carry measure follow shelter connect outlast".split())
PARAGRAPH = (
    "In the {number}th chapter we read how {subject} {verb} what nobody expected of them. "
    "Those who studied {subject} for a lifetime describe how slowly they change, and how much depends on them."
)


def document(title: str, chunks: int) -> str:
    """Return the text of a document: a title, and a paragraph for each chunk."""
    paragraphs = (
        PARAGRAPH.format(number=number + 4, subject=SUBJECTS[(number + len(title)) % 10], verb=VERBS[number % 6])
        for number in range(chunks)
    )
    return "\n\n".join([title, *(f"{title}. {each}" for each in paragraphs)])


def cut(text: str) -> list[str]:
    """Cut a document into its paragraphs; the title is none."""
    return text.split("\n\n")[1:]
