#!/usr/bin/env bash
# huey 3.5.4 (lock_task), diskcache 5.6.3 (Lock), dramatiq 2.2.1 (ConcurrentRateLimiter), beside redis-py 8.1.0
#   (Lock), seen 2026-11-28.
# Expected: a lock with an expiry belongs to one holder. Where the holder was slower than the expiry and a second one
#   has the lock, the first one's release changes nothing or raises, as redis-py's does (LockNotOwnedError).
# Happens: the three delete the key, or count down, whoever releases. The slow holder's release frees the second one's
#   lock, and a third gets in beside the second: one slow run makes every later pair overlap, not only itself.
# Means: an expiry has to exceed the longest run by far, or the critical section needs a check of its own at its end.
. "$(dirname "$0")/lib.sh"
packages huey==3.5.4 diskcache==5.6.3 dramatiq==2.2.1 redis==8.1.0
redis

observe <<'PY'
import contextlib
import os
import tempfile
import time

import diskcache
import huey
import redis
from dramatiq.rate_limits import ConcurrentRateLimiter
from dramatiq.rate_limits.backends import RedisBackend

connection = redis.Redis.from_url(os.environ["REDIS_URL"])
queue = huey.RedisExpireHuey("shop", connection_pool=connection.connection_pool)
cache = diskcache.Cache(tempfile.mkdtemp(dir="."))


def of_huey(seconds):
    lock = queue.lock_task("lock", ttl=seconds)
    return lock.acquire, lock.release


def of_diskcache(seconds):
    lock = diskcache.Lock(cache, "lock", expire=seconds)

    def acquire():
        if lock.locked():  # its acquire() would wait
            raise RuntimeError
        lock.acquire()

    return acquire, lock.release


def of_dramatiq(seconds):
    limiter = ConcurrentRateLimiter(RedisBackend(client=connection), "limiter", limit=1, ttl=seconds * 1000)
    held = contextlib.ExitStack()
    return lambda: held.enter_context(limiter.acquire()), held.close


def of_redis(seconds):
    lock = connection.lock("redis-py", timeout=seconds, blocking=False)

    def acquire():
        if not lock.acquire():
            raise RuntimeError

    return acquire, lock.release


def tried(action):
    try:
        action()
    except Exception as error:
        return type(error).__name__
    return "yes"


for name, of in {"huey": of_huey, "diskcache": of_diskcache, "dramatiq": of_dramatiq, "redis-py": of_redis}.items():
    (first, first_release), (second, _), (third, _) = of(1), of(60), of(60)
    first()
    time.sleep(1.5)
    print(f"{name:10} second gets it: {tried(second)}  first releases: {tried(first_release):18}", end="")
    print(f" third gets in: {tried(third) == 'yes'}")
PY
expect <<'TEXT'
huey       second gets it: yes  first releases: yes                third gets in: True
diskcache  second gets it: yes  first releases: yes                third gets in: True
dramatiq   second gets it: yes  first releases: yes                third gets in: True
redis-py   second gets it: yes  first releases: LockNotOwnedError  third gets in: False
TEXT
