"""What the project keeps."""

from django.db import models


class Order(models.Model):
    customer = models.CharField(max_length=100, unique=True)

    def __str__(self) -> str:
        return str(self.customer)
