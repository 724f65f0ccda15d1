"""The tables of the ledger, the permissions for jobs, and the model that the admin shows."""

from django.db import migrations, models

from onejob.django.conf import apply_version, keep_tables


class Migration(migrations.Migration):  # type: ignore[misc] # Django ships no types
    """Apply version 0001 in the ledger's database; record the model, which has no Django table."""

    initial = True
    dependencies = ()
    operations = (
        migrations.RunPython(apply_version("0001"), keep_tables),
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
