"""Kills, freezes, cuts, and counts. Each script runs alone: `python -m chaos.kill_storm`."""
