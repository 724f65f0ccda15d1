"""`onejob demo`: duplicate requests, a limit, a killed worker and a resumed job, without a server to install."""

TASK = "study_plan"
PRINT = "print_copy"
"""The task with a limit: one copy at a time for each customer."""
LEASE = 3.0
"""Seconds after which the runs of a killed worker are detected as lost."""
