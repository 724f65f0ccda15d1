"""From a folder of texts to study cards: pure, deterministic stages whose values are plain JSON.

The stages are ``load``, ``chunk``, ``embed``, ``write_cards`` and ``check_cards``. Two of them also come in batches
(``weigh`` then ``embed_batch``; ``share`` then ``write_cards_for``), so that a caller can meter, keep or repeat each
batch by itself.
"""

from onejob.demo.pipeline.cards import share, write_cards, write_cards_for
from onejob.demo.pipeline.check import check_cards
from onejob.demo.pipeline.passages import chunk
from onejob.demo.pipeline.reading import UnusableTextsError, load
from onejob.demo.pipeline.values import BLANK, Card, Checked, Chunk, Document, Rejection, Vector
from onejob.demo.pipeline.vectors import batches, cosine, embed, embed_batch, weigh

__all__ = [
    "BLANK",
    "Card",
    "Checked",
    "Chunk",
    "Document",
    "Rejection",
    "UnusableTextsError",
    "Vector",
    "batches",
    "check_cards",
    "chunk",
    "cosine",
    "embed",
    "embed_batch",
    "load",
    "share",
    "weigh",
    "write_cards",
    "write_cards_for",
]
