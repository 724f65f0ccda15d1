#!/usr/bin/env bash
# jcs 0.2.1 and rfc8785 0.1.4, seen 2026-11-28.
# Expected: two packages for one RFC (8785, canonical JSON) write the same bytes, or both refuse. Python's integers
#   are exact, and two different documents have two canonical forms.
# Happens: jcs rounds an integer above 2**53 to the nearest double, without an error, so that neighbouring 64-bit ids
#   (of a bigint column, or of Snowflake's kind) have one form. rfc8785 refuses them.
# Means: a digest of jcs's bytes (an idempotency key, a cache key) is the same for different orders. Write large ids
#   as strings before they are made canonical.
. "$(dirname "$0")/lib.sh"
packages jcs==0.2.1 rfc8785==0.1.4

observe <<'PY'
import hashlib

import jcs
import rfc8785

first, second = {"order": 1795828498439000001}, {"order": 1795828498439000002}
print("jcs     ", jcs.canonicalize(first).decode(), jcs.canonicalize(second).decode())
print("digests equal:", len({hashlib.sha256(jcs.canonicalize(order)).hexdigest() for order in (first, second)}) == 1)
for value in (first, {"order": 2**53 + 1}, {"order": 1e20}):
    try:
        print("rfc8785 ", value, "->", rfc8785.dumps(value).decode())
    except rfc8785.CanonicalizationError as error:
        print("rfc8785 ", value, "->", type(error).__name__)
PY
expect <<'TEXT'
jcs      {"order":1795828498439000000} {"order":1795828498439000000}
digests equal: True
rfc8785  {'order': 1795828498439000001} -> IntegerDomainError
rfc8785  {'order': 9007199254740993} -> IntegerDomainError
rfc8785  {'order': 1e+20} -> {"order":100000000000000000000}
TEXT
