"""What the shop keeps."""

from django.db import models
from django.db.models import Q


class Order(models.Model):
    """An order; `invoice` is empty until there is one."""

    customer = models.CharField(max_length=100)
    cents = models.IntegerField()
    paid = models.BooleanField(default=False)
    invoice = models.CharField(max_length=40, default="")

    class Meta:
        """The database checks what the shop relies on."""

        constraints = (models.CheckConstraint(condition=Q(cents__gt=0), name="an_order_costs_something"),)

    def __str__(self) -> str:
        return f"order {self.pk} of {self.customer}"
