"""How many messages wait in the broker's queues, where the broker can tell."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from onejob.celery.broker import queue_length
from onejob.celery.control import connect_to_broker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery import Celery

logger = logging.getLogger("onejob")


def queue_lengths(app: Celery, names: Iterable[str]) -> dict[str, int | None]:
    """Return the number of messages in each queue; None where the broker cannot tell, or has no such queue.

    Nothing is created. Without a connection to the broker within `control.BROKER_TIMEOUT`, all numbers are None.
    """
    lengths: dict[str, int | None] = dict.fromkeys(names)
    try:
        with connect_to_broker(app) as connection:
            for name in lengths:
                lengths[name] = queue_length(connection, name)
    except Exception as error:  # noqa: BLE001 - any transport's error: the figures are optional
        logger.info("the broker does not tell the lengths of its queues: %r", error)
    return lengths
