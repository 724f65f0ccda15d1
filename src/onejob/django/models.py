"""The model of a job without a table: it names the permissions, and the place in the admin. The ledger has the jobs."""

from typing import Any

from django.db import models


class NoRows(models.Manager):  # type: ignore[misc] # Django ships no types
    """A manager without rows, since the model has no table: `dumpdata` reads the rows of every model."""

    def get_queryset(self) -> Any:
        """Return an empty query set."""
        return super().get_queryset().none()


class Job(models.Model):  # type: ignore[misc]
    """A job of the ledger; Django knows only its id."""

    id = models.CharField(primary_key=True, max_length=255)
    objects = NoRows()

    class Meta:
        """The model has permissions, and no table."""

        managed = False
        base_manager_name = "objects"
        verbose_name = "job"
        verbose_name_plural = "jobs"
        default_permissions = ("view",)
        permissions = (
            ("operate_job", "Can cancel, run now, redrive and delete job"),
            ("edit_job", "Can redrive job with other arguments"),
        )

    def __str__(self) -> str:
        return str(self.id)
