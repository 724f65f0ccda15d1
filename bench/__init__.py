"""How long operations take, and why: on servers of their own. Each script runs alone: `python -m bench.rows`."""
