"""Orders."""

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    """The first version."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("customer", models.CharField(max_length=100)),
                ("cents", models.IntegerField()),
                ("paid", models.BooleanField(default=False)),
                ("invoice", models.CharField(default="", max_length=40)),
            ],
            options={
                "constraints": [models.CheckConstraint(condition=Q(cents__gt=0), name="an_order_costs_something")]
            },
        ),
    )
