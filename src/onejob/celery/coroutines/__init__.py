"""Coroutines as bodies of tasks: how each pool of Celery runs them, and the pool `-P onejob`, which runs hundreds."""
