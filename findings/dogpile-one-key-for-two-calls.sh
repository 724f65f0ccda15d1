#!/usr/bin/env bash
# dogpile.cache 1.5.0, seen 2026-11-28.
# Expected: `@region.cache_on_arguments()` keys by the arguments, as functools.lru_cache does: other arguments,
#   another entry.
# Happens: the default key is the arguments' texts, joined by spaces. So 1 and "1", None and "None", a date and its
#   text, and ("New York", "Bakery") and ("New", "York Bakery") share an entry: a call gets the result of another one,
#   of another type.
# Means: give `function_key_generator=` with repr, as soon as an argument is a text that may hold a space.
. "$(dirname "$0")/lib.sh"
packages dogpile.cache==1.5.0

observe <<'PY'
import datetime

from dogpile.cache import make_region

region = make_region().configure("dogpile.cache.memory")


@region.cache_on_arguments()
def described(*arguments):
    return repr(arguments)


print(described("New York", "Bakery"), described("New", "York Bakery"))
print(described(1), described("1"))
print(described(None), described("None"))
print(described(datetime.date(2026, 11, 28)), described("2026-11-28"))
PY
expect <<'TEXT'
('New York', 'Bakery') ('New York', 'Bakery')
(1,) (1,)
(None,) (None,)
(datetime.date(2026, 11, 28),) (datetime.date(2026, 11, 28),)
TEXT
