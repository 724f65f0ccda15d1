"""Command lines of the pages: each command of ours has the options and arguments that a page gives it."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

import click
from celery.bin.celery import celery

from onejob.cli.commands import main
from website.navigation import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from website.blocks import Block

_TARGETS = re.compile(r"^([a-z-]+):", re.MULTILINE)
_ENDS = re.compile(r"(?<=\s)(?:&&?|\|\|?|;)(?=\s|$)")
_REDIRECTION = re.compile(r"(?<=\s)(?:\d?>{1,2}|<)\s*\S+|(?<=\s)&(?=\s|$)")
_SUBSTITUTION = re.compile(r"\$\(([^()]+)\)")


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the commands of a block as words. In a `console` block they follow a `$`; its other lines are output."""
    text = block.code.replace("\\\n", " ")
    lines = text.splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    for line in lines:
        for part in _ENDS.split(line):
            yield from (shlex.split(inner, comments=True) for inner in _SUBSTITUTION.findall(part))
            words = shlex.split(_REDIRECTION.sub(" ", _SUBSTITUTION.sub("value", part)), comments=True)
            while words and re.fullmatch(r"\w+=.*", words[0]):
                words = words[1:]
            if words:
                yield words


def fault(words: list[str]) -> str:
    """Return what is wrong with a command of ours, or nothing. Other programs are not known here."""
    try:
        match words:
            case ["onejob", *rest]:
                _parse(main, "onejob", rest)
            case ["celery", *rest]:
                _parse_celery(rest)
            case ["make", target, *_] if target not in _TARGETS.findall((ROOT / "Makefile").read_text()):
                return f"the Makefile has no target {target}"
            case _:
                pass
    except click.UsageError as error:
        return error.format_message()
    return ""


def _parse_celery(words: list[str]) -> None:
    """Parse a command of Celery; `celery -A app onejob ...` is ours."""
    if next((word for word in words if word == "onejob" or word in celery.commands), "") == "onejob":
        from onejob.cli.commands import celery_group

        _parse(celery_group, "celery onejob", words[words.index("onejob") + 1 :])
        return
    options = [word for word in words if word.startswith("-")]
    known = {name for command in celery.commands.values() for option in command.params for name in option.opts}
    known |= {name for option in celery.params for name in option.opts} | {"-A", "--app"}
    if not any(word in celery.commands for word in words):
        msg = f"celery has no such command: {' '.join(words)}"
        raise click.UsageError(msg)
    for option in options:
        name = option.partition("=")[0]
        if name not in known and name[:2] not in known:
            raise click.NoSuchOption(name)


def _parse(command: click.Command, name: str, words: list[str]) -> None:
    """Parse the words of a command and its sub-commands without running them. Raises `click.UsageError`."""
    while True:
        context = _Context(command, info_name=name)
        if any(word in {"--help", "--version"} for word in words):
            words = [word for word in words if word not in {"--help", "--version"}]
            context.resilient_parsing = True
        try:
            rest = command.parse_args(context, list(words))
        except click.BadParameter as error:
            if "does not exist" in error.format_message():  # a file of the reader's
                return
            raise
        if not isinstance(command, click.Group):
            return
        rest = [*getattr(context, "_protected_args", []), *context.args] or rest
        if not rest:
            return
        name, following, words = command.resolve_command(context, rest)  # type: ignore[assignment]
        command = following or command


class _Context(click.Context):
    """A context in which no command runs."""

    def exit(self, code: int = 0) -> Any:
        """End nothing."""
