"""The tables of the ledger, the permissions for jobs, and the name under which the admin has them."""

from django.db import migrations, models

from onejob.django.conf import apply_version, keep_tables


class Migration(migrations.Migration):  # type: ignore[misc] # Django ships no types
    """Apply version 0001 where the ledger is, and record the model, which has no table of Django's."""

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
