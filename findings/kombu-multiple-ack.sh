#!/usr/bin/env bash
# kombu 5.7.0, virtual transports (here: filesystem; Redis and SQLAlchemy alike), seen 2026-11-28.
# Expected: `message.ack(multiple=True)` acknowledges this message and all before it on its channel, as AMQP 0-9-1
#   says: the usual way of a consumer that handles messages in batches.
# Happens: the argument is accepted and not used. The one message is acknowledged, the others of the batch stay
#   unacknowledged and come back when the channel closes (on Redis, or when the visibility timeout ends).
# Means: a batch consumer that is right on RabbitMQ handles all but one message of each batch again on Redis.
#   Acknowledge each.
. "$(dirname "$0")/lib.sh"
packages kombu==5.7.0

observe <<'PY'
import os
import time

import kombu

OPTIONS = {"data_folder_in": "messages", "data_folder_out": "messages", "control_folder": "control"}
os.mkdir("messages")
orders = kombu.Queue("orders", kombu.Exchange("orders"), routing_key="orders")


def redelivered(acknowledge):
    with kombu.Connection("filesystem://", transport_options=OPTIONS) as connection:
        with connection.channel() as channel:
            queue = orders(channel)
            queue.declare()
            for number in range(5):
                kombu.Producer(channel, orders.exchange, "orders").publish({"number": number})
                time.sleep(0.005)  # a file's name has milliseconds
        with connection.channel() as channel:
            queue = orders(channel)
            acknowledge([queue.get() for _ in range(5)])
        with connection.channel() as channel:
            queue, back = orders(channel), []
            while message := queue.get(no_ack=True):
                back.append(message.payload["number"])
            return sorted(back)


print("each one acknowledged:   delivered again", redelivered(lambda batch: [message.ack() for message in batch]))
print("last one, multiple=True: delivered again", redelivered(lambda batch: batch[-1].ack(multiple=True)))
PY
expect <<'TEXT'
each one acknowledged:   delivered again []
last one, multiple=True: delivered again [0, 1, 2, 3]
TEXT
