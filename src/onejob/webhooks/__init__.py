"""Webhooks: the end of a job is told to a URL, by a job of the same ledger that waits for that end."""
