"""`onejob demo`: the double click, a killed worker and the resumed job, with no server to install."""

TASK = "study_plan"
LEASE = 3.0
"""After how many seconds a killed worker is missed."""
