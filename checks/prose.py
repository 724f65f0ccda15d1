"""The prose of docstrings: a first sentence names its noun, and needs no other sentence to be understood."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from checks.project import SOURCE, check, parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checks.project import Project

NOUNLESS = re.compile(
    r"""
    ^(?:And|As|It|Its|One[ ]that|Such|That[ ]of|Their|The[ ]others|They|Those|What)\b
    | ^[A-Z][a-z]+[ ](?:it|its|that[ ]of|them|they|those|what)\b   # a verb, or "whether", without a noun
    | \bsuch[ ](?:a[ ]one|an[ ]one|ones?)\b
    | (?<!\bof)[ ]\w+[ ]one's\b(?![ ]own)
    | (?<!each[ ])\bother's\b
    | ^(?:The|[A-Z][a-z]+[ ]the)[ ]same(?:[ ](?:as|for|in|of|with|without)\b|[.;,]|$)
    | [:;][ ]the[ ]same(?:[ ](?:with|without)\b|[.;,]|$)
    """,
    re.VERBOSE,
)
"""The beginnings and parts of a sentence in which a pronoun stands for a noun of another sentence."""


@check
def docstrings(project: Project) -> Iterator[str]:
    """The first sentence of a docstring names its subject: no pronoun stands for a noun of another sentence."""
    for place, text in project.under(SOURCE, ".py").items():
        for line, sentence in first_sentences(text):
            if found := NOUNLESS.search(sentence):
                yield f"{place}:{line}: {found[0].strip()!r} stands for no noun of its sentence: {sentence}"


def first_sentences(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first sentences of a module's docstrings, and of the texts below its constants, with their lines."""
    for node in ast.walk(parsed(source)):
        body = node.body if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else []
        for statement in body:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, first_sentence(text)


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, on one line."""
    return re.split(r"(?<=[.!?])\s", " ".join(text.split()), maxsplit=1)[0]
