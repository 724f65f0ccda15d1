"""Stage one: read a folder of texts. The only stage that does I/O."""

from pathlib import Path

from onejob.demo.pipeline.language import plain
from onejob.demo.pipeline.values import Document

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
