"""A shop with one task worth testing: it calls a payment provider, and must charge once."""

from celery import Celery

import onejob

app = Celery("shop", broker="redis://localhost:6379/0")


class Provider:
    """The client of a payment provider, which the tests replace."""

    def charge(self, order_id: int, key: str) -> str:
        """Charge an order once per idempotency key, and return the id of the payment."""
        raise NotImplementedError


provider = Provider()


@app.task(base=onejob.Task, unique_on=["order_id"], unique_for=3600)
def charge(order_id: int, note: str = "") -> dict[str, str]:
    """Charge an order. `note` is for people, and does not make two calls different."""
    job = onejob.current_job()
    job.progress(0, 2, "payment")
    payment = job.step("charge", provider.charge, order_id, key=job.effect_key("charge"))
    job.progress(1, 2, "receipt")
    receipt.delay(order_id, payment)
    return {"payment": payment, "note": note}


@app.task(base=onejob.Task)
def receipt(order_id: int, payment: str) -> str:
    """Write the receipt of a payment."""
    return f"order {order_id}: paid by {payment}"
