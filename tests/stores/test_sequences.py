"""Mended faults and rare orders of events, a line each: on every store they end as on the model."""

import ast
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

from onejob.jobs.handover import BY_CALLER, BY_SWEEP, Way, by_caller, held
from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.limits import KeyUse, first_park, value_of_text, write_uses
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.jobs.submitter import Charge, Quota
from onejob.stores.protocol import HISTORY_LIMIT
from tests.cases import for_each
from tests.stores.lockstep import TICK, LockStep
from tests.stores.support import (
    CONFLICT_POLICIES,
    LEASE,
    RUNNING,
    TASKS,
    WAITING,
    change,
    duplicate,
    holding,
    looked_at,
    submission,
)

REPEATED_SUBMISSIONS = """
submit a; claim a; kept a; submit b follows=True; pass 61; submit c; submit b follows=True
submit a; claim a; kept a; submit b follows=True; pass 61; submit b,c follows=True
freeze; submit a; claim a; kept a; submit b follows=True; submit b follows=True
submit a; submit a:other nonce=other payload=[]; cancel a; submit a nonce=third
submit a; claim a; complete a; submit b; submit a
submit a; claim a; kept a; submit a nonce=other; submit a
next; submit b run_again; complete a; submit b; claim b; submit b; complete b; submit b
next; cancel b; submit b run_again
next; forget b; fail a; redrive a reopens=True
next expires_in=5; pass 6; expire b; submit b run_again
next expires_in=5; pass 6; submit c run_again; expire b; complete a; claim c; submit c run_again
next expires_in=5; pass 6; complete a; submit c run_again key=k; due; expire b
next; submit c run_again fingerprint=x; submit c run_again fingerprint=x
submit a; claim a; submit b follows=True; complete a; submit b follows=True
submit a; claim a; submit b follows=True; kept a; submit b follows=True; submit c follows=True; submit c follows=True
submit a; submit b; flood a 19; submit b
submit a; submit b; flood a 20; submit b
submit a; submit b:other,c,b:other,c
submit a nonce=0; submit b nonce=ab; submit c nonce=b; submit d nonce=a
submit a:one; submit b:two; submit c:one nonce=n; submit d:two nonce=n
submit first; claim first; submit again:same,again:other follows=True
submit a:two,b:one,a:one,c:two,b:three follows=True
"""
REPEATED_REQUESTS = """
submit a; claim a; update_progress a request_id=ID; update_progress a *7; update_progress a request_id=ID published=3
submit a; claim a; update_progress a request_id=ID; update_progress a *8; update_progress a request_id=ID published=3
submit a; claim a nonce=ID; update_progress a *7; claim a nonce=ID; release a; claim a nonce=ID; claim a nonce=n
submit a; claim a nonce=ID; release a; claim a nonce=n; release a; claim a; claim a nonce=ID; claim a nonce=n
submit a; claim a; update_progress a request_id=ID; update_progress a request_id=01234567 token=1
submit a; claim a; update_progress a request_id=ID; update_progress a request_id=89abcdef; claim a nonce=456789ab
submit a; claim a; update_progress a request_id=ID; update_progress a request_id=aaaaaaaabbbbbbbb; \
update_progress a request_id="89abcdef aaaaaaa"; update_progress a request_id=89abcdefaaaaaaaa
submit a; claim a; submit b follows=True; complete a request_id=ID; publish b wake_after=70; complete a request_id=ID
"""
IDENTITIES = """
submit a; claim a; fail a; submit b; claim b; kept b; until b identity_until; redrive a reopens=True
submit a; claim a; update_progress a keeps_identity=False; submit b; complete a; submit c
submit a; claim a; kept a; until a identity_until 0.25; submit b; until a identity_until; submit c
submit a; claim a; complete a keeps_identity=True identity_until=1; submit b
submit a; claim a; kept a; delete a; pass 60; submit b; delete a; submit a
submit a; submit b; submit c; claim a; submit d,e,f; complete a; submit g; submit h,i,j; claim g; complete g; \
submit k,l
submit a expires_in=10; until a expires_at; submit b expires_in=50; submit c replace
submit a expires_in=10; until a expires_at; submit b priority_rank=1 expires_in=50
submit a expires_in=10; pass 11; submit b key=k follows=True; submit c rejects=True; expire a; \
submit b key=k follows=True
submit a; claim a; fail a; submit b expires_in=10; pass 11; redrive a reopens=True; expire b; due
submit a expires_in=10 charges=few; pass 11; submit b charges=few; submit c:two charges=few; submit d:one charges=few
submit a; submit b replace fingerprint=x payload=[2]; submit c replace
submit a; claim a; submit b replace fingerprint=x delay=5; submit c replace delay=5; complete a; claim b; pass 5; \
claim b
submit a delay=15; pass 10; submit b replace delay=15; pass 20; submit c replace delay=15 fingerprint=x; \
pass 25; submit d replace delay=15; claim a; pass 9; claim a
"""
QUEUED_NEXT = """
delayed; submit c run_again fingerprint=x; claim b; promote b reopens=True
next; kept a; due; release_identity a keeps_identity=False; promote b reopens=True; due
next; complete a; claim b; submit c run_again; fail b; claim c; submit d run_again; abandon c; claim d; complete d
next; fail a; redrive a reopens=True; claim b; complete b; redrive a reopens=True
next; follow f after=b; follow g after=a; complete a; due; claim b; complete b; due
next; submit c run_again key=k; complete a; submit d run_again key=k; claim b; complete b; submit e run_again key=k
submit a; claim a; submit b,c,d run_again; submit e,f replace fingerprint=x delay=5; complete a
"""
FOLLOWERS = """
submit a; claim a; follow f after=a; fail a; claim f; redrive a reopens=True; claim a; complete a
submit a; claim a; follow f after=a; complete a; forget f; keep a; follow f after=a
submit a; claim a; follow f after=nobody; follow f after=a; complete a; delete a; follow f after=a; \
claim f; fail f; redrive f reopens=True; cancel f
submit a; claim a; follow f after=a; fail a; claim f; fail f; redrive a reopens=True; \
redrive f reopens=True rejoins=True; claim a; complete a; due; claim f; complete f
submit a; claim a; follow f after=a; fail a; claim f; fail f; redrive f reopens=True rejoins=True; \
due; claim f; cancel f
submit a; claim a; submit b follows=True; fail a; submit c; claim b; fail b; \
redrive b reopens=True rejoins=True; claim b
submit a; claim a; submit b follows=True; complete a; submit c; claim c; complete c; claim b; complete b
submit a; claim a; follow f after=a; follow g after=a; complete a; claim f; complete f; keep a; claim g; complete g; \
keep a
"""
KEYS = """
submit a key=k key_for=50; claim a; complete a; until a key_retained_until; keep a
submit a key=k key_for=50; claim a; kept a; keep a
submit a key=k key_for=50; claim a; complete a; until a key_retained_until 0.25; submit b key=k fingerprint=x; \
keep a; \
until a key_retained_until; submit c key=k fingerprint=x; keep a
submit a key=k; submit b replace key=l fingerprint=x; submit c key=k; submit d key=l fingerprint=x; \
submit e key=k fingerprint=x; submit f key=l
submit a; claim a; submit b key=k rejects=True; complete a; submit c key=k fingerprint=x
submit a key=k; submit b key=l; submit c:other key=m; claim a; complete a; delete a; \
submit d:one key=k fingerprint=x; submit e:two key=l; submit f:three key=m
submit a:one,b:two,c:one,d:two key=k
submit a:two,b:one,c:two,d:one key=k
submit a; claim a; kept a; submit b key=k; pass 61; submit c; submit d key=k
submit a; submit b raise key=k; submit c:other key=k; submit b raise key=k; submit b raise key=k fingerprint=x; \
submit d key=k; submit d key=k
submit a; submit b key=k key_for=5; submit e; pass 6; submit c:other key=k; submit b key=k; claim a; kept a; \
submit b,e key=k; until a identity_until; submit b key=k
submit a key=k; answer k; cancel a; delete a; submit a:other; answer k
submit a; submit a key=k nonce=2; submit b:other key=k; submit c:other key=k fingerprint=x; claim a; complete a; \
keep a; submit a key=k nonce=3
submit a; submit a key=k fingerprint=x nonce=2; submit b:other key=k; answer k
submit a key=k; submit a key=k fingerprint=x nonce=2; submit a key=l fingerprint=x nonce=3; submit a key=k nonce=4; \
answer l
submit a:one key=k; submit b:two; submit b:two key=k nonce=2; submit b:two key=k fingerprint=x nonce=3; claim a; \
complete a; submit b:two key=k nonce=4; submit b:two key=l nonce=5; answer l
submit a key=k; submit b replace fingerprint=x; submit a key=k nonce=2; submit a key=k fingerprint=x nonce=3; \
submit a fingerprint=x nonce=4; submit a key=l nonce=5; submit a key=l fingerprint=x nonce=6
submit a; claim a; submit b follows=True; submit b key=k nonce=2; submit c:other key=k; complete a; \
submit b key=k nonce=3; keep a
next; submit b run_again key=k nonce=2; submit c:other key=k; complete a; submit b key=k fingerprint=x nonce=3; answer k
submit a; submit b:other key=k key_for=5; pass 6; submit a key=k nonce=2; answer k; submit b:other key=k nonce=3
submit a:one key=k; cancel a; delete a; submit b:two; submit b:two key=k nonce=2; answer k; submit c:three key=k
submit a key=k nonce=n; submit a key=k nonce=n; submit b:two; submit b:two key=l nonce=m *2; submit b:two nonce=o *2
submit a key=k; pass 1; submit a key=k nonce=2; submit a,b:other,c:other key=l nonce=3; \
submit a:same,a:same key=m nonce=4
submit a key=k; cancel a; spare a; edited a b; submit b fingerprint=x; edited a b; answer k; submit c key=k; \
submit d key=k fingerprint=x; claim b; complete b; keep b; spare b; until b key_retained_until; spare b
submit a key=k key_for=50; claim a; complete a; until a key_retained_until; spare a
submit a; follow f after=a; cancel a; spare a; claim f; complete f; spare a
submit a canvas=True; cancel a; spare a; canvas_notified a canvas_pending=False; spare a
submit a:one key=k; submit b:two key=l; submit c:three key=m key_for=900; claim a; fail a; edited a b; \
claim b; fail b; edited b c; answer k; answer l; answer m; submit d key=k; submit e:two key=l; submit f:three key=m
submit a:one key=k; submit b:two; claim a; fail a; edited a b; submit a:one; answer k; submit a:one key=k nonce=2; \
cancel b; delete b; answer k; submit a:one key=k nonce=3; answer k
submit a:one key=k; submit b:two; submit c:three; cancel a; edited a b; submit c:three key=k nonce=2; \
submit c:three key=k fingerprint=x nonce=3
submit a:one key=k; submit b:two; submit c:three; cancel a; edited a b; cancel b; delete b; \
submit c:three key=k nonce=2; answer k
submit a:one key=k; submit b:two; cancel a; edited a b; submit c:one key=k; submit a:one; cancel a; delete a; \
answer k; submit d:one key=k
submit a:one key=k; submit b:two; cancel a; edited a b; cancel b; delete b; answer k; submit a:one key=k; answer k
submit a:one key=k; cancel a; edited a nobody; answer k; submit b:one key=k
submit a:one key=k key_for=5; submit b:two; cancel a; pass 9; edited a b; answer k
"""
RUNS = """
submit a:one; submit b:two; claim a nonce=n; claim b nonce=n; renew a=n nobody=n; renew a=n; renew b=n
submit a; renew a=''; claim a; renew a=''
submit a; claim a nonce=n; until a lease_until; renew a=n; crash a lapsed=True; until a lease_until; \
crash a lapsed=True
freeze; submit a:one; submit b:two; claim a; claim b; report a; release a; claim a; report b; release a; claim a
submit a delay=-9000; pass 7200; claim a; pass -3600; crash a; claim a; release a; pass 3601; claim a
submit a; claim a nonce=n; pass -3600; pass 30; crash a lapsed=True; claim a; due; renew a=n; pass 30; \
crash a lapsed=True
submit a; publish a token=0; report a; claim a; update_progress a token=0
submit a; claim a nonce=n; report a; complete a; delete a; submit a; report a; claim a; claim a nonce=n; \
complete a token=1
"""
TIMES = """
submit a expires_in=40 canvas=True; cancel a; postpone a 100; lose a 0
submit a; claim a; retry a run_in=50 handover=caller; lose a 0
submit a:one charges=few; submit b:two charges=few; submit c:three charges=few; pass 49.953125; \
submit d:four charges=few
submit a expires_in=10; until a expires_at 0.25; expire a overdue=True; until a expires_at; expire a overdue=True
submit a expires_in=40; publish a wake_after=100; publish a wake_after=3
submit a canvas=True expires_in=5; pass 6; expire a wake_after=0; pass 1; \
canvas_notified a canvas_pending=False wake_after=9
submit a delay=100 expires_in=50; submit b delay=40 expires_in=0; pass 40; submit c replace priority_rank=1 max_wait=0
submit a:one expires_in=40; submit b:two delay=9; submit c:three canvas=True; claim c; complete c; \
postpone a,b,c 100; lose a,b,c 0; due
submit a:one; submit b:two delay=9; submit c:three; claim c; submit d:four; publish d handover=sweep; \
lose a,b,c,d 0; due
submit a; pass -3600; submit b:other; submit c; claim b; kept b; flood b 25; pass 31; due; pass 3600; due
submit a; claim a; complete a; bury a 100; pass 99; look a; pass 1; look a; submit a; look a; cancel a; bury a 100; \
look a
"""
TAGS = """
submit a:one tag_lines=old; submit b:one tag_lines=new; submit c:one replace tag_lines=new
submit a:one tag_lines=old; submit b:one replace fingerprint=x tag_lines=new; submit c:one replace
submit a:one,b:two,c:three tag_lines=many; submit d:one,e:two,f:three replace fingerprint=x; claim a; retry a; redrive b
next tag_lines=next; submit c run_again fingerprint=x tag_lines=new; complete a; claim b
submit a tag_lines=old; claim a; submit b follows=True tag_lines=follower; follow f after=a; complete a
"""
LIMITS = """
define gpu=1; submit a:one,b:two limits=gpu; free gpu; claim a; pass 31; crash a lapsed=True; free gpu; claim b; \
complete a token=1; free gpu; claim a
define gpu=1; submit a:one,b:two limits=gpu; free gpu; claim a; until a lease_until 0.25; free gpu; \
until a lease_until; free gpu; claim b; complete a; free gpu
define gpu=1; submit a:one,b:two limits=gpu; free gpu; pass 29; claim b; pass 1; free gpu; claim a; claim b
define gpu=1; submit a:one,b:two limits=gpu; free gpu; claim a nonce=n; pass 29; renew a=n; pass 29; free gpu; \
complete a; free gpu
define gpu=2; submit a:one,b:two limits=gpu; free gpu limit=1; free gpu way=offered; claim a; claim b; \
retry a run_in=0; claim a
define gpu=1; submit a:one,b:two limits=gpu; free gpu; claim a; retry a run_in=0; claim a; \
submit c:three limits=gpu parks=False; complete a; claim c; free gpu; claim c
define gpu=1; submit a:one limits=gpu; submit b:two limits=gpu priority_rank=2; submit c:three limits=gpu; free gpu; \
claim c; claim b; claim a
define gpu=1; submit a:one limits=gpu; submit b:two limits=gpu; submit a2:one limits=gpu priority_rank=2; \
submit b2:two limits=gpu priority_rank=1; free gpu; claim a; submit b3:two limits=gpu priority_rank=2; complete a; \
free gpu
define gpu=1; submit a limits=gpu; claim a; submit b:two limits=gpu; claim b; claim b; cancel b parked_on=''; \
complete a; free gpu
submit a:one,b:two limits=gpu; free gpu limit=1; claim a; free gpu; claim b; define gpu=1; submit c:three limits=gpu; \
claim c; complete a; free gpu; complete b; free gpu
define gpu=1 disk=1; submit a:one limits=disk; submit b:two,c:three limits=gpu+disk; free disk; claim a; free gpu; \
claim b; complete a; free disk; free gpu; claim b; complete b; free gpu; free disk
define gpu=1 disk=1; submit a:one limits=gpu+disk; submit b:two limits=disk; free gpu; free disk; pass 30; free disk; \
claim a
define gpu=1; submit a:one limits=gpu delay=50; submit b:two,c:three limits=gpu; free gpu; free gpu; until a run_at; \
claim a; claim b; complete b; free gpu; claim c
define gpu=1; submit a:one limits=gpu expires_in=20; submit b:two limits=gpu; free gpu; pass 21; claim a; free gpu; \
expire a; free gpu; claim b
define gpu=1; submit a limits=gpu expires_in=20; claim a; submit b:two limits=gpu expires_in=20; claim b; pass 21; \
submit c:two limits=gpu
define gpu=1; next limits=gpu; submit c:two limits=gpu; free gpu; complete a; claim b; claim c; complete c; free gpu; \
claim b
define gpu=1; submit a; claim a; submit b follows=True limits=gpu; submit c:two limits=gpu; free gpu; claim c; \
complete a; claim b; complete c; free gpu
define gpu=1 disk=1; submit a limits=gpu; submit b replace fingerprint=x limits=disk; claim a; free disk; free gpu; \
claim a
define gpu=1 disk=1; submit a limits=gpu; free gpu; submit b replace fingerprint=x limits=disk; claim a; \
submit c:two limits=gpu; free gpu; free disk; complete a
define gpu=1; submit a:one,b:two limits=gpu; free gpu; stop a parked_on=p wake_after=9; free gpu; claim b; resume p; \
claim a; complete b; free gpu
define gpu=1; submit a:one,b:two limits=gpu; limit gpu=2 until=10; free gpu; claim a; claim b; \
submit c:three limits=gpu; pass 10; complete a; free gpu; complete b; free gpu; limit gpu=0; \
submit d:four limits=gpu; claim c; unlimit gpu; claim c
define gpu=1; submit a:one limits=gpu; free gpu; cancel a; submit b:two limits=gpu; free gpu; delete a; claim b; \
complete b
define gpu=1; submit a:one limits=gpu; claim a; fail a; delete a; submit b:two limits=gpu; claim b; forget b; free gpu
define gpu=9; submit a:one limits=gpu; free gpu way=swept; submit b:two limits=gpu route=slow; free gpu way=swept; \
submit c:three limits=gpu; free gpu way=offered; submit d:four limits=gpu route=slow; free gpu way=offered; \
submit e:five limits=gpu; free gpu way=pushed; submit f:six limits=gpu; free gpu way=held; due; pass 30; due
define api=60/minute; submit a:one,b:two,c:three limits=api; free api; alarms; pass 0.5; alarms; claim b; pass 0.5; \
alarms; free api; claim a; claim b; pass 3; alarms; alarms; free api; alarms
define api=60/minute; submit a:one limits=api:8; submit b:two limits=api; free api; claim a; free api; claim b; \
pass 7; claim b; pass 1; claim b
define api=60/minute; spend api 3; submit a limits=api; free api; claim a; spend api -2.5; claim a; spend api -9; \
claim a
define api=2/minute; submit a:one limits=api; free api; pass 1; cancel a; submit b:two limits=api; claim b
define api=2/minute; submit a:one limits=api; free api; stop a parked_on=p wake_after=9; submit b:two limits=api; \
free api; claim b; resume p; claim a; free api; pass 60; alarms; free api
define api=2/minute gpu=1; submit x:zero limits=gpu; free gpu; claim x; submit a:one limits=api; free api; \
submit b:two limits=api+gpu; free api; pass 30; free api; free gpu; claim b
define api=2/minute; submit a:one limits=api; free api; limit api=0; submit b:two limits=api; claim b; claim a; \
unlimit api; complete a; pass 20; free api; pass 10; free api; claim b
define api=120/minute; submit a:one limits=api:2; free api; limit api=60/minute until=5; pass 31; claim a; pass 5; \
claim a; retry a run_in=0; claim a
define gpu=1; submit a:one limits=gpu; claim a nonce=n; pass 31; renew a=n; submit b:two limits=gpu; claim b; \
renew a=n; complete a; free gpu
define gpu=1; submit a:one,b:two limits=gpu; free gpu; release_identity a keeps_identity=False; forget a; free gpu; \
claim b
define gpu=1; submit a:one,b:two limits=gpu; release_identity a keeps_identity=False; forget a; free gpu; claim b
define gpu=1; submit a:one limits=gpu; free gpu; strike a; redrive a reopens=True; submit b:two limits=gpu; free gpu; \
claim a; claim b; complete b; free gpu; claim a
define gpu=1; submit a limits=gpu; free gpu; submit b replace fingerprint=x; claim a; submit c:two limits=gpu; claim c
define gpu=1; submit a; submit b replace fingerprint=x limits=gpu; submit c:two limits=gpu; free gpu; claim a; claim c
define api=2/minute; submit a limits=api; free api; submit b replace fingerprint=x limits=api:8; claim a; \
submit c:two limits=api; claim c; pass 30; claim c
define api=2/minute gpu=0; submit a:one limits=api+gpu; claim a; submit b:two limits=api; claim b; pass 30; \
limit gpu=1; free gpu; free api; pass 29; stop a parked_on=p wake_after=9; free api; resume p; claim a; free gpu
"""
ID = "0123456789abcdef"
SEQUENCES = [
    line.replace("ID", ID)
    for text in (
        REPEATED_SUBMISSIONS, REPEATED_REQUESTS, IDENTITIES, QUEUED_NEXT, FOLLOWERS, KEYS, RUNS, TIMES, TAGS,
        LIMITS,
    )
    for line in text.strip().splitlines()
]  # fmt: skip


TEXTS = frozenset({"nonce", "payload", "fingerprint", "request_id", "limits"})


class Script:
    """Plays commands: each has ids (`id:identity` for another one than "same"), conflict policies and values."""

    def __init__(self, run: LockStep) -> None:
        self.run = run
        self.numbers = 0
        self.keys: set[str] = set()
        """The keys of limits, whose uses are compared after each command."""

    def play(self, text: str) -> None:
        """Run each command, as often as its `*` says."""
        for command in text.split(";"):
            name, *words = shlex.split(command)
            values = {
                key: value_of(key, text) for key, _, text in (word.partition("=") for word in words if "=" in word)
            }
            plain = [word for word in words if "=" not in word and word[0] != "*"]
            for _ in range(next((int(word[1:]) for word in words if word[0] == "*"), 1)):
                own = getattr(self, f"do_{name}", None)
                own(*plain, **values) if own else self.change(Transition(name), *plain, **values)
                self.compare_limits()
        self.run.compare_everything()

    def compare_limits(self) -> None:
        """Compare the uses of all keys, and the places of all jobs."""
        for key in sorted(self.keys):
            self.run.read("limit_use", key)
        for row in self.run.model.rows.values() if self.keys else ():
            self.run.read("parked_before", row.job)
        if self.keys:
            self.run.read("limit_uses", limit=100)

    def number(self) -> str:
        """Return a request id that was not used."""
        self.numbers += 1
        return f"{self.numbers:016x}"

    def job(self, job_id: str) -> JobRow:
        """Return a job as the model has it."""
        return self.run.model.rows[job_id].job

    def change(self, event: Transition, job_id: str, **values: Any) -> None:
        self.run("apply", change(self.job(job_id), event, **{"request_id": self.number()} | values))

    def do_submit(self, ids: str, policy: str = "attach", **values: Any) -> None:
        pairs = [each.partition(":") for each in ids.split(",")]
        if "charges" in values:
            values["charges"] = (Charge("quota", Quota(2, 50), values["charges"]),)
        if "limits" in values:
            values |= self.limited(values.pop("limits"), parks=values.pop("parks", True))
        news = [
            submission(job_id, **{"identity": name or "same"} | CONFLICT_POLICIES[policy] | values)
            for job_id, _, name in pairs
        ]
        self.run("submit_many", news, handover_of=holding(by_caller))

    def limited(self, limits: str, *, parks: bool) -> dict[str, Any]:
        """Return what a submission with limits has (`gpu+api:2`: keys and weights), and whether it waits at first."""
        pairs = [each.partition(":") for each in limits.split("+")]
        limit_keys = write_uses([KeyUse(key, float(weight or 1)) for key, _, weight in pairs])
        self.keys |= {key for key, _, _ in pairs}
        return {"limit_keys": limit_keys, "parked_on": first_park(limit_keys) if parks else None}

    def do_define(self, **values: object) -> None:
        """Define limits."""
        self.run(
            "put_limits", [replace(value_of_text(key, str(each)), is_default=True) for key, each in values.items()]
        )

    def do_limit(self, until: float | None = None, **values: object) -> None:
        """Write exceptions that end in so many seconds."""
        ends = None if until is None else self.run.clock.now + until
        self.run("put_limits", [value_of_text(key, str(each), until=ends) for key, each in values.items()])
        self.run.read("limit_values")

    def do_unlimit(self, key: str) -> None:
        self.run("delete_limit", key)

    def do_free(self, key: str, *, way: str = "caller", limit: int = 100) -> None:
        self.run("free_slots", key, way=Way(way), limit=limit)

    def do_spend(self, key: str, amount: str) -> None:
        self.run("spend", key, float(amount))

    def do_alarms(self) -> None:
        self.run("due_limits")

    def do_stop(self, job_id: str, **values: Any) -> None:
        """Park a job on a pause."""
        self.change(Transition.PARK, job_id, handover=held(9.0), **values)

    def do_resume(self, pause: str) -> None:
        self.run("unpark", pause, limit=9, reason="it has ended")

    def do_next(self, **values: Any) -> None:
        self.play("submit a; claim a")
        self.do_submit("b", "run_again", **values)

    def do_delayed(self) -> None:
        """Queue b behind a job that releases its identity before its end, and which another job holds then."""
        self.play("next; release_identity a keeps_identity=False; submit o; claim o; complete a")

    def do_kept(self, job_id: str) -> None:
        self.change(Transition.COMPLETE, job_id, keeps_identity=True, identity_for=60.0, wake_after=9.0)

    def do_flood(self, job_id: str, number: str) -> None:
        """Submit so many duplicates of a job."""
        for _ in range(int(number)):
            self.do_submit(f"flood-{self.number()}:{self.job(job_id).identity}")

    def do_follow(self, job_id: str, *, after: str) -> None:
        self.run("follow", submission(job_id), follows_id=after)

    def do_claim(self, job_id: str, *, nonce: str = "") -> None:
        nonce = nonce or self.number()
        self.run("claim", job_id, nonce=nonce, node="node-1", sources=WAITING, target=State.RUNNING)

    def do_renew(self, **claims: str) -> None:
        self.run("renew", [*claims.items(), *claims.items()], sources=RUNNING)

    def do_report(self, job_id: str) -> None:
        token = self.job(job_id).token
        self.run("report", job_id, token, self.number(), sources=RUNNING)
        self.run("keep_step", job_id, token, "step", self.number(), sources=RUNNING)

    def do_due(self) -> None:
        self.run("take_due", tasks=TASKS, limit=9, hold=5.0)

    def do_postpone(self, ids: str, seconds: str, *, lost: bool = False) -> None:
        self.run("postpone", dict.fromkeys(ids.split(","), float(seconds)), lost=lost)

    def do_lose(self, ids: str, seconds: str) -> None:
        self.do_postpone(ids, seconds, lost=True)

    def do_delete(self, job_id: str, **values: Any) -> None:
        self.run("delete", [job_id], sources=FINAL, **values)

    def do_keep(self, job_id: str) -> None:
        """Delete a job, unless something refers to it."""
        self.do_delete(job_id, skip_referenced=True)

    def do_spare(self, job_id: str) -> None:
        """Delete a job, unless something still needs it."""
        self.do_delete(job_id, skip_needed=True)

    def do_edited(self, job_id: str, successor: str) -> None:
        """Delete a job in whose place another one answers its idempotency keys."""
        self.do_delete(job_id, successor=successor, tombstone_for=50.0)

    def do_forget(self, job_id: str) -> None:
        """Delete a job that has not ended."""
        self.run("delete", [job_id], sources=WAITING)

    def do_bury(self, job_id: str, seconds: str) -> None:
        """Delete a job that leaves a tombstone."""
        self.do_delete(job_id, tombstone_for=float(seconds))

    def do_look(self, job_id: str) -> None:
        self.run.read("tombstone", job_id)

    def do_answer(self, key: str) -> None:
        """Look for the job that would answer a key."""
        self.run.read("find_existing", "nothing", key)

    def do_pass(self, seconds: str) -> None:
        self.run.clock.advance(float(seconds))

    def do_until(self, job_id: str, column: str, before: str = "0") -> None:
        """Have the next write happen exactly at a time of a job, or so much before it."""
        self.run.clock.now = getattr(self.job(job_id), column) - float(before) - TICK

    def do_freeze(self) -> None:
        """Stop the clock."""
        self.run.tick = 0.0


def value_of(name: str, text: str) -> Any:
    """Return the value of a column; most are numbers or truth values."""
    if name == "handover":
        return {"caller": BY_CALLER, "sweep": BY_SWEEP}[text]
    return text if name in TEXTS or not re.fullmatch(r"-?[\d.]+|True|False", text) else ast.literal_eval(text)


FILTERS: list[dict[str, Any]] = [
    {}, {"task": "other.task"}, {"states": frozenset({State.RUNNING})}, {"queue": "1"}, {"reason": "RUN"},
    {"submitter": "user:1"}, {"submitter": "user:1", "task": "app.add", "states": frozenset({State.QUEUED})},
]  # fmt: skip


@for_each("sequence", SEQUENCES[::2])
def test_a_sequence_ends_as_on_the_model(lockstep: Callable[[], LockStep], sequence: str) -> None:
    """Each command has the same answer on every store, and leaves the same columns."""
    Script(lockstep()).play(sequence)


@for_each("sequence", SEQUENCES[1::2])
def test_every_other_sequence_ends_as_on_the_model(lockstep: Callable[[], LockStep], sequence: str) -> None:
    """Of the many sequences two processes play a half each, as the test above does."""
    Script(lockstep()).play(sequence)


def test_a_tag_is_found_whole(lockstep: Callable[[], LockStep]) -> None:
    """A filter finds the jobs that have a tag, whatever its characters are: no part of one, and not several."""
    run = lockstep()
    lines = [None, "import", "tenant:7\nimport", "tenant:70\nimports", "%_\\'\"ü😀", 'a b\n"]']
    run("submit_many", [submission(f"{n}", tag_lines=each) for n, each in enumerate(lines)], handover_of=by_caller)
    tags = {tag for each in lines if each for tag in each.split("\n")}
    for tag in (*tags, "tenant:7\nimport", "tenant", "%", "", "\n", "IMPORT"):
        found = [job.id for job in run.read("find", Query(tag=tag))]
        assert found == [f"{n}" for n in range(5, -1, -1) if tag in (lines[n] or "").split("\n") and tag], tag
        assert sum(run.read("counts", Query(tag=tag, states=frozenset({State.QUEUED}))).values()) == len(found)


def test_many_jobs_are_as_few(lockstep: Callable[[], LockStep]) -> None:
    """Batches, pages, positions, counts, sweeps, renewals and deletions of more jobs than a store reads at once."""
    run = lockstep()
    for batch in range(4):
        task, numbers = ("app.add", "other.task")[batch % 2], range(250 * batch, 250 * batch + 250)
        news = [
            submission(
                f"job-{n:04}", task=task, identity=str(n % 700), route=str(n % 3), submitter=("", "user:1")[n % 2]
            )
            for n in numbers
        ]  # fmt: skip
        run("submit_many", news, handover_of=looked_at(1.0 + batch))
    jobs = run.read("find", Query(limit=10_000))
    ids = [job.id for job in jobs]
    for limit in (250, 1000):  # of equal times, which are those of a batch, a store may look at any
        run.read("backlog", tasks=TASKS, limit=limit)
    for job_id in ids[:260]:
        run.read("claim", job_id, nonce=job_id, node="node-1", sources=WAITING, target=State.RUNNING)
    run("renew", [(job_id, job_id) for job_id in ids[:300]], sources=RUNNING)
    for filters, limit in product(FILTERS, (50, 260)):
        run.read("find", Query(limit=60, offset=limit - 50, **filters))
        run.read(
            "find", Query(limit=50, light=True, before=jobs[limit].created_at, before_id=jobs[limit].id, **filters)
        )
        run.read("counts", Query(**filters), limit=limit)
    for skip in (0, 299, 699, 700):
        for filters in ({}, {"submitter": "user:1"}, {"states": RUNNING}):
            run.read("edge", Query(**filters), skip=skip)
    for limit in (1, 250, 1000):
        run.read("count_states", limit=limit)
    run.clock.advance(LEASE)
    run("take_due", tasks=frozenset({"other.task"}), limit=800, hold=600.0)
    for job_id in ids[:150]:
        ending = change(run.model.rows[job_id].job, Transition.FAIL, request_id=f"end-of-{job_id}", wake_after=5.0)
        run.read("apply", ending)
    assert len(run("delete", [*ids, "nobody"], sources=FINAL)) == 150
    run.compare_everything()


def test_a_long_history_is_cut_and_shortens_no_other(lockstep: Callable[[], LockStep]) -> None:
    """Of each job the newest entries are kept, also beside one with many more, and duplicates add none."""
    script = Script(lockstep())
    script.play("submit a:one; submit b:two; claim a; claim b; update_progress b *9")
    for number in range(HISTORY_LIMIT + 5):
        values = {"request_id": script.number(), "detail": f"{number}"}
        script.run.read("apply", change(script.job("a"), Transition.UPDATE_PROGRESS, **values))
    script.run.compare_everything()
    assert len(script.run.model.history("a")) == HISTORY_LIMIT


def test_redeliveries_push_out_no_duplicates(lockstep: Callable[[], LockStep]) -> None:
    """However often a message is redelivered, the newest duplicates and the latest redelivery are kept."""
    script = Script(lockstep())
    script.play("submit a")
    again = duplicate("a", source="redelivery")
    for _ in range(25):
        script.play("flood a 1")
        script.run("record", again)
        script.run("record", again)
    script.run.compare_everything()
