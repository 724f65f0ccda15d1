"""Version 0003 of the ledger's schema."""

from typing import Any

from django.db import migrations

from onejob.django.schema import apply_version, keep_tables

DjangoMigration: Any = migrations.Migration  # Django ships no types


class Migration(DjangoMigration):  # type: ignore[misc]
    """Apply the version where the ledger is."""

    dependencies = (("onejob", "0002_routes"),)
    operations = (migrations.RunPython(apply_version("0003"), keep_tables),)
