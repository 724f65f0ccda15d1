#!/usr/bin/env bash
# limits 5.8.0 (the engine of Flask-Limiter and slowapi), seen 2026-11-28.
# Expected: `hit(item, key, cost=n)` asks for n units and gets them, or is refused and takes nothing, whatever the
#   strategy.
# Happens: the fixed window adds the cost before it compares. A refused request of cost 3 uses up what was left, and
#   all small ones are refused until the window ends; moving window and sliding window counter do as expected.
# Means: under the fixed window (the default of Flask-Limiter), a client that asks for too much once locks itself out,
#   and a switch of the strategy changes who is served. Call `test(item, key, cost=n)` first.
. "$(dirname "$0")/lib.sh"
packages limits==5.8.0

observe <<'PY'
import limits
from limits import storage, strategies

NAMES = ["FixedWindowRateLimiter", "MovingWindowRateLimiter", "SlidingWindowCounterRateLimiter"]
for name in NAMES:
    limiter = getattr(strategies, name)(storage.MemoryStorage())
    five_a_day = limits.parse("5/day")
    print(f"{name:32}", [(cost, limiter.hit(five_a_day, "client", cost=cost)) for cost in (3, 3, 1, 1)])
PY
expect <<'TEXT'
FixedWindowRateLimiter           [(3, True), (3, False), (1, False), (1, False)]
MovingWindowRateLimiter          [(3, True), (3, False), (1, True), (1, True)]
SlidingWindowCounterRateLimiter  [(3, True), (3, False), (1, True), (1, True)]
TEXT
