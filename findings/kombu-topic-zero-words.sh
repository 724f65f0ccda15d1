#!/usr/bin/env bash
# kombu 5.7.0, virtual transports (here: memory; Redis, filesystem and SQLAlchemy alike), seen 2026-11-28.
# Expected: a topic exchange as AMQP 0-9-1 defines it, which kombu's guide repeats: `#` stands for zero or more words.
#   A queue bound with `orders.#` gets `orders`, as it does from RabbitMQ.
# Happens: `#` needs one word at least here, so `orders` is dropped; `#.failed` does not get `failed`.
# Means: routing that was tested in memory or on Redis changes when the broker becomes RabbitMQ, and the other way
#   round it loses messages without an error. Bind both `orders` and `orders.#`.
. "$(dirname "$0")/lib.sh"
packages kombu==5.7.0

observe <<'PY'
import kombu

KEYS = ["orders", "orders.paid", "orders.paid.eu", "failed", "orders.failed"]
exchange = kombu.Exchange("events", "topic")


def received(binding):
    got = []
    with kombu.Connection("memory://") as connection, connection.channel() as channel:
        bound = kombu.Queue(f"queue {binding}", exchange, routing_key=binding)(channel)
        bound.declare()
        for key in KEYS:
            kombu.Producer(channel, exchange).publish({}, routing_key=key)
        while message := bound.get(no_ack=True):
            got.append(message.delivery_info["routing_key"])
    return got


for binding in ("orders.#", "#.failed", "#"):
    print(f"{binding:9}", received(binding))
PY
expect <<'TEXT'
orders.#  ['orders.paid', 'orders.paid.eu', 'orders.failed']
#.failed  ['orders.failed']
#         ['orders', 'orders.paid', 'orders.paid.eu', 'failed', 'orders.failed']
TEXT
