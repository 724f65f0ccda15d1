#!/usr/bin/env bash
# pydantic 2.14.4, beside msgspec 0.22.0, seen 2026-11-28.
# Expected: a field of type Decimal gets the digits of the JSON document, since Decimal is there for exact amounts;
#   large integers do arrive exactly.
# Happens: a JSON number with a point is read as a double first and then made a Decimal: digits after the 17th are
#   lost, an amount of sixteen digits before the point loses its cents, and 1.10 becomes 1.1. As a string all is
#   exact, and `strict=True` changes nothing. msgspec keeps every digit.
# Means: a validator of two decimal places cannot notice it, since it sees what is left. Let clients send amounts as
#   strings.
. "$(dirname "$0")/lib.sh"
packages pydantic==2.14.4 msgspec==0.22.0

observe <<'PY'
from decimal import Decimal

import msgspec
import pydantic

amount = pydantic.TypeAdapter(Decimal)
for text in ["9007199254740993.01", "0.12345678901234567890", "1.10", "100000000000000000001"]:
    print("JSON:                ", text)
    print("  pydantic           ", amount.validate_json(text))
    print("  pydantic, strict   ", amount.validate_json(text, strict=True))
    print("  pydantic, a string ", amount.validate_json(f'"{text}"'))
    print("  msgspec            ", msgspec.json.decode(text, type=Decimal))
PY
expect <<'TEXT'
JSON:                 9007199254740993.01
  pydantic            9007199254740994
  pydantic, strict    9007199254740994
  pydantic, a string  9007199254740993.01
  msgspec             9007199254740993.01
JSON:                 0.12345678901234567890
  pydantic            0.12345678901234568
  pydantic, strict    0.12345678901234568
  pydantic, a string  0.12345678901234567890
  msgspec             0.12345678901234567890
JSON:                 1.10
  pydantic            1.1
  pydantic, strict    1.1
  pydantic, a string  1.10
  msgspec             1.10
JSON:                 100000000000000000001
  pydantic            100000000000000000001
  pydantic, strict    100000000000000000001
  pydantic, a string  100000000000000000001
  msgspec             100000000000000000001
TEXT
