"""The permissions for jobs, and the name under which the admin has them. The ledger's schema stays as it is."""

from typing import Any

from django.db import migrations, models

DjangoMigration: Any = migrations.Migration  # Django ships no types


class Migration(DjangoMigration):  # type: ignore[misc]
    """Record the model, which has no table."""

    dependencies = (("onejob", "0005_state_index"),)
    operations = (
        migrations.CreateModel(
            "Job",
            [("id", models.CharField(max_length=255, primary_key=True, serialize=False))],
            {
                "managed": False,
                "base_manager_name": "objects",
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "default_permissions": ("view",),
                "permissions": (
                    ("operate_job", "Can cancel, run now, redrive and delete job"),
                    ("edit_job", "Can redrive job with other arguments"),
                ),
            },
        ),
    )
