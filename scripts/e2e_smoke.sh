#!/usr/bin/env bash
# Check the laws of a job API that serves examples/job_api, from outside: scripts/e2e_smoke.sh URL [KEY]
#
# One line for each law; exit code 1 at the first that does not hold. It stops, starts and kills the workers of that
# stack: by itself for `make up`; with STACK=compose for deploy/compose.yaml; for any other by your commands in
# WORKERS_STOP, WORKERS_START and WORKERS_KILL. Needs bash, curl and python3.
set -euo pipefail

usage="usage: [STACK=local|compose] scripts/e2e_smoke.sh URL [KEY]"
url=${1:?$usage}
url=${url%/}
key=${2:-}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
patience=${PATIENCE:-120} # seconds to wait for what must come; far more than it takes
mark=smoke-$(date +%s)-$$ # no other run has it, so the jobs of this one are new

case ${STACK:-local} in
local)
    python=$root/.venv/bin/python
    [ -x "$python" ] || python=python3
    stack="cd '$root' && '${PYTHON:-$python}' -m examples.job_api --folder '${UP_FOLDER:-$root/.up}' workers"
    : "${WORKERS_STOP:=$stack stop}" "${WORKERS_START:=$stack start}" "${WORKERS_KILL:=$stack kill}"
    ;;
compose)
    stack="docker compose --file '$root/deploy/compose.yaml'"
    : "${WORKERS_STOP:=$stack stop worker}" "${WORKERS_START:=$stack start worker}"
    : "${WORKERS_KILL:=$stack kill --signal KILL worker}"
    ;;
*)
    echo "STACK is ${STACK}; $usage" >&2
    exit 2
    ;;
esac

scratch=$(mktemp -d)
stopped=
leave() {
    if [ -n "$stopped" ]; then bash -c "$WORKERS_START" >"$scratch/hook" 2>&1 || cat "$scratch/hook"; fi
    rm -rf "$scratch"
}
trap leave EXIT
trap 'exit 130' INT TERM
printf 'authorization: Bearer %s' "$key" >"$scratch/key" # a file, since every user sees a command line

# --- laws -----------------------------------------------------------------------------------------------------------

law() { law=$1; }
holds() { printf 'holds   %s\n' "$law"; }
broken() {
    printf 'BROKEN  %s: %s\n' "$law" "$1"
    [ ! -s "$scratch/body" ] || printf '        last answer: %s %s\n' "$status" "$(head -c 2000 "$scratch/body")"
    exit 1
}

same() { # WHAT FOUND WANTED
    [ "$2" = "$3" ] || broken "$1 is '$2', not '$3'"
}

at_least() { # FOUND WANTED
    [[ $1 =~ ^[0-9]+$ && $2 =~ ^[0-9]+$ ]] && (($1 >= $2))
}

# --- workers --------------------------------------------------------------------------------------------------------

workers() { # stop|start|kill
    local hook
    case $1 in
    stop) hook=$WORKERS_STOP stopped=yes ;;
    start) hook=$WORKERS_START stopped= ;;
    kill) hook=$WORKERS_KILL stopped=yes ;;
    esac
    bash -c "$hook" >"$scratch/hook" 2>&1 || broken "\`$hook\` failed: $(tail -n 5 "$scratch/hook")"
}

# --- asking ---------------------------------------------------------------------------------------------------------

status=
nothing='{}'
ask() { # METHOD PATH [JSON [HEADER]]: sets status, and keeps the body
    local options=(--silent --show-error --max-time 60 --output "$scratch/body" --write-out '%{http_code}')
    [ -z "$key" ] || options+=(--header "@$scratch/key")
    [ "$1" = GET ] || options+=(--header 'content-type: application/json' --data "${3:-$nothing}")
    [ -z "${4:-}" ] || options+=(--header "$4")
    : >"$scratch/body"
    status=$(curl "${options[@]}" --request "$1" "$url$2" 2>"$scratch/error") || broken "$1 $2: $(cat "$scratch/error")"
}

answered() { # STATUS [PROBLEM]
    same "the status" "$status" "$1"
    [ -z "${2:-}" ] || same "the problem" "$(field type)" "urn:onejob:problem:$2"
}

field() { # PATH of names and numbers, joined by dots, in the last body
    python3 - "$scratch/body" "$1" <<'END'
import json, sys
value = json.load(open(sys.argv[1], encoding="utf-8"))
for name in sys.argv[2].split("."):
    value = value[int(name)] if isinstance(value, list) else None if value is None else value.get(name)
print(value if isinstance(value, str) else json.dumps(value, separators=(",", ":")))
END
}

lists() { # ID: whether the last body, a page or a list, has it
    python3 - "$scratch/body" "$1" <<'END'
import json, sys
sys.exit(sys.argv[2] not in [job["id"] for job in json.load(open(sys.argv[1], encoding="utf-8"))["jobs"]])
END
}

submit() { # TASK KWARGS [MORE MEMBERS]: sets job, the id
    ask POST /jobs "{\"task\": \"office.$1\", \"kwargs\": $2${3:+, $3}}"
    case $status in 200 | 202) job=$(field job.id) ;; esac
}

await() { # ID FIELD VALUE: until the job has it, or a greater number; broken when the job ends without
    local deadline=$((SECONDS + patience)) state
    while :; do
        ask GET "/jobs/$1"
        answered 200
        state=$(field state)
        if [ "$(field "$2")" = "$3" ] || at_least "$(field "$2")" "$3"; then return; fi
        case $state in completed | failed | canceled) broken "the job has ended, $state, and its $2 is $(field "$2")" ;; esac
        ((SECONDS < deadline)) || broken "after $patience s the job's $2 is still $(field "$2"), not $3"
        sleep 0.2
    done
}

ended() { # ID STATE: waits for the end
    await "$1" state "$2"
}

# --- the laws -------------------------------------------------------------------------------------------------------

law "the server is up, and its ledger and its broker answer"
ask GET /healthz
answered 200
ask GET /readyz
answered 200
same "what it checks" "$(field checks)" '{"store":true,"broker":true}'
holds

if [ -n "$key" ]; then
    law "without a key nothing is told"
    (key= && ask GET /jobs && answered 401 unauthorized)
    holds
fi

law "a job waits while no worker runs, is listed as queued, and is canceled at once"
workers stop
submit count_words "{\"text\": \"never counted $mark\"}"
answered 202
canceled=$job
ask GET "/jobs?state=queued&task=office.count_words"
answered 200
lists "$canceled" || broken "the list of queued jobs does not have $canceled"
ask POST "/jobs/$canceled/cancel"
answered 200
same "its state" "$(field state)" canceled
ask POST "/jobs/$canceled/cancel"
answered 409 job-ended
holds

law "a job completes when a worker comes, and has its result"
submit count_words "{\"text\": \"three words $mark\"}"
answered 202
completed=$job
workers start
ended "$completed" completed
same "its result" "$(field result)" 3
holds

law "a canceled job never runs"
ask GET "/jobs/$canceled"
same "its state" "$(field state)" canceled
same "its attempts" "$(field attempt)" 0
holds

law "what can never work fails for good, at the first attempt, and is a dead letter"
submit send_letter "{\"address\": \"Nowhere $mark\"}"
answered 202
failed=$job
ended "$failed" failed
same "its attempts" "$(field attempt)" 1
same "its error" "$(field error.message)" "the address 'Nowhere $mark' has no town"
ask GET "/dead?task=office.send_letter"
answered 200
lists "$failed" || broken "the dead letters do not have $failed"
holds

law "what fails twice is tried three times, and completes"
submit fetch_rate "{\"currency\": \"$mark-twice\", \"outages\": 2, \"pause\": 0.5}"
answered 202
ended "$job" completed
same "its attempts" "$(field attempt)" 3
holds

law "what always fails is seen and listed as retrying, until its retries are exhausted"
submit fetch_rate "{\"currency\": \"$mark-always\", \"outages\": 99, \"pause\": 5}"
answered 202
exhausted=$job
listed=
until [ -n "$listed" ]; do # it may begin to run between the two requests, and then retries once more
    await "$exhausted" state retrying
    ask GET "/jobs?state=retrying&task=office.fetch_rate"
    answered 200
    ! lists "$exhausted" || listed=yes
done
ended "$exhausted" failed
same "its attempts" "$(field attempt)" 3
holds

law "the same idempotency key twice is one job, and with other arguments a mistake"
submit count_words "{\"text\": \"key $mark\"}" "\"idempotency_key\": \"$mark\""
answered 202
first=$job
ended "$first" completed
submit count_words "{\"text\": \"key $mark\"}" "\"idempotency_key\": \"$mark\""
answered 200
same "its job" "$job" "$first"
submit count_words "{\"text\": \"other $mark\"}" "\"idempotency_key\": \"$mark\""
answered 422 key-reused
holds

law "who asks again while a job lives gets that job, or a 409 when that is asked for"
submit write_report "{\"customer\": \"$mark\", \"parts\": 30, \"seconds_per_part\": 0.5}"
answered 202
report=$job
submit write_report "{\"customer\": \"$mark\"}"
answered 200
same "the outcome" "$(field outcome)" attached
same "its job" "$job" "$report"
submit write_report "{\"customer\": \"$mark\"}" '"on_duplicate": "raise"'
answered 409 duplicate-job
same "the job in its way" "$(field job_id)" "$report"
holds

law "a job whose worker is killed with SIGKILL runs again, and does not repeat the steps that are done"
for pause in 0.5 2; do # on a busy machine a report may be written before its worker is killed
    submit write_report "{\"customer\": \"$mark $pause\", \"parts\": 30, \"seconds_per_part\": $pause}"
    answered 202
    report=$job
    await "$report" progress.done 2
    workers kill
    workers start
    ended "$report" completed
    ! at_least "$(field crashes)" 1 || break
done
at_least "$(field crashes)" 1 || broken "no lost run is counted"
same "the run that wrote the first part" "$(field result.parts.0.run)" 1
at_least "$(field result.parts.29.run)" 2 || broken "no later run wrote the last part"
holds

law "jobs are listed by state"
for each in "completed $completed" "completed $report" "failed $failed" "failed $exhausted" "canceled $canceled"; do
    ask GET "/jobs?state=${each% *}&limit=200"
    answered 200
    lists "${each#* }" || broken "the list of ${each% *} jobs does not have ${each#* }"
done
holds

law "what is not there, does not fit or comes too late is told as a problem"
ask GET "/jobs/$mark"
answered 404 job-not-found
ask GET /nowhere
answered 404 not-found
submit count_words '{"text": 7}'
answered 422 invalid-request
submit no_such_task '{}'
answered 422 invalid-request
ask POST "/jobs/$completed/redrive"
answered 409 not-a-dead-letter
holds

echo "all laws hold"
