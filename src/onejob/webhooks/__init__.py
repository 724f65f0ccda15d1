"""Webhooks report the end of a job to a URL; each is itself a job of the ledger, which follows that job."""
