#!/usr/bin/env bash
# SQLite 3.40.1 and 3.41.0, by apsw 3.40.1.0 and 3.41.0.0, seen 2026-11-28.
# Expected: `returning finished_at is null` says of each row that was written whether that column is null.
# Happens: in a STRICT table whose primary key is a text, SQLite 3.39 to 3.40 answer 0 for a column that is null, in the
#   same row that has the null itself; `iif(... is null, ...)` takes the wrong branch, `coalesce` is right. The same
#   table without STRICT is right, too.
# Means: Debian 12 has 3.40.1, a developer's machine often a newer one: an UPDATE ... RETURNING that decides by `is null`
#   passes there and is wrong on the server. Return the column, and compare it outside. SQLite 3.41.0 is right.
. "$(dirname "$0")/lib.sh"

module returning <<'PY'
import apsw

version = getattr(apsw, "sqlite_lib_version", None) or apsw.sqlitelibversion
for options in "strict", "":
    connection = apsw.Connection(":memory:")
    connection.execute(f"create table jobs (id text primary key, state text, finished_at real) {options}")
    connection.execute("insert into jobs values ('a', 'queued', null)")
    returned = "finished_at, finished_at is null, iif(finished_at is null, 'open', 'ended'), coalesce(finished_at, 'none')"
    row = connection.execute(f"update jobs set state = 'running' returning {returned}").fetchone()
    print(version(), options or "not strict", *row)
PY

for version in 3.40.1.0 3.41.0.0; do
    packages apsw==$version
    observe <<'PY'
import returning
PY
    case $version in
    3.40*) expect <<'OUT' ;;
3.40.1 strict None 0 ended none
3.40.1 not strict None 1 open none
OUT
    *) expect <<'OUT' ;;
3.41.0 strict None 1 open none
3.41.0 not strict None 1 open none
OUT
    esac
done
