"""`onejob demo`: duplicate requests, a killed worker and a resumed job, without a server to install."""

TASK = "study_plan"
LEASE = 3.0
"""Seconds after which the runs of a killed worker are detected as lost."""
