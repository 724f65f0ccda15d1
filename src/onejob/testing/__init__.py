"""Tests of users' own tasks, on a real ledger in a temporary directory."""
