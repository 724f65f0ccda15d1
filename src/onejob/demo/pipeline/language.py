"""English text: words, stop words, sentences, clauses."""

import re
from itertools import pairwise

STOP_WORDS = frozenset(
    """
    a about above after against ago all also although always am among an and another any are around as at away
    be became because become been before being below best better between both but by came can cannot come could
    did do does doing done down during each either else ever every far few for from further gave get give given
    go goes going good had has hath have having he hence her here hereby herein hers herself him himself his how
    however i if in indeed into is it its itself just large last least less let like long made make makes making
    many may me might mine more most much must my myself namely nay near needs neither never new next no nor not
    nothing now of off often old on once one only or other others otherwise ought our ours ourselves out over
    own part per perhaps place proper put quite rather re said same see seem seems shall she should since so
    some somewhat such take than that the thee their theirs them themselves then thence there thereby therefore
    therein thereof therewith these they thing things this those thou though through throughout thus till time
    times to together too toward towards under unless until up upon us use used uses very was way we well were
    what whatever whatsoever when whence where whereas whereby wherein whereof whether which while who whole
    whom whose why will with within without would yet you your yours
    """.split()
)

_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
_MARKUP = re.compile(r"^(?:#{1,6}|[-*+>])\s+|[*`]+|!?\[([^\]]*)\]\([^)]*\)", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<!\bSt)(?<!\bMr)(?<!\bDr)(?<!\b[A-Z])[.?!][\"\u201d\u2019)]*\s+(?=[\"\u201c(A-Z])")
_CLAUSE_END = re.compile(r"[;:—]+\s*")


def words(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return [word.casefold() for word in _WORD.findall(text)]


def terms(text: str) -> list[str]:
    """The words that carry meaning: no stop words, nothing shorter than three letters."""
    return [word for word in words(text) if len(word) > 2 and word not in STOP_WORDS]


def plain(block: str) -> str:
    """A block of text on one line, without Markdown's signs."""
    return " ".join(_MARKUP.sub(r"\1", block.strip()).split())


def sentences(text: str) -> list[str]:
    """A text cut behind its full stops, question and exclamation marks, but not behind *St.* or an initial."""
    return _cut(text, _SENTENCE_END)


def clauses(text: str) -> list[str]:
    """A text cut behind its semicolons, colons and dashes."""
    return _cut(text, _CLAUSE_END)


def _cut(text: str, end: re.Pattern[str]) -> list[str]:
    cuts = [0, *(match.end() for match in end.finditer(text)), len(text)]
    return [text[a:b].strip() for a, b in pairwise(cuts) if text[a:b].strip()]
