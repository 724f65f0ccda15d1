"""Version 0006 of the ledger's schema."""

from typing import Any

from django.db import migrations

from onejob.django.schema import apply_version, keep_tables

DjangoMigration: Any = migrations.Migration  # Django ships no types


class Migration(DjangoMigration):  # type: ignore[misc]
    """Apply the version where the ledger is."""

    dependencies = (("onejob", "0006_permissions"),)
    operations = (migrations.RunPython(apply_version("0006"), keep_tables),)
