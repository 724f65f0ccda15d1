"""The README of the package: links and pictures that are relative in a clone are absolute on the package index."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

HOST = "https://github.com/onejob/onejob"
RAW = "https://raw.githubusercontent.com/onejob/onejob/main"
_PICTURE = re.compile(r"\.(?:gif|jpe?g|png|svg|webp)$")
_TARGET = re.compile(r"(\]\(|(?:src|srcset|href)=\")([^)\s\"]+)(?=[)\"])")


def absolute(text: str, root: Path) -> str:
    """Return the text of a page of `root` with absolute links: to the repository's host, pictures to its raw files."""

    def link(found: re.Match[str]) -> str:
        target = found[2]
        if re.match(r"[a-z]+:", target):
            return found[0]
        if target.startswith("#"):
            return f"{found[1]}{HOST}{target}"
        path = target.partition("#")[0]
        if _PICTURE.search(path):
            return f"{found[1]}{RAW}/{target}"
        return f"{found[1]}{HOST}/{'tree' if (root / path).is_dir() else 'blob'}/main/{target}"

    return _TARGET.sub(link, text)


class ReadmeHook(MetadataHookInterface):
    """Sets `readme` in the metadata of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put the README with absolute links into the metadata."""
        root = Path(self.root)
        text = absolute((root / "README.md").read_text(encoding="utf-8"), root)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
