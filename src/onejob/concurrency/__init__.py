"""Threads that repeat a call (`loops`); batches, objects per event loop and caches of concurrent calls (`batching`)."""
