"""Job events and their listeners (logs, metrics), traces, and the origin of HTTP requests."""
