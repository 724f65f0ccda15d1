"""The submission of jobs: the options of tasks, calls, their submissions to the ledger, and replacements."""
