"""Checks of an installation: the app's settings, its store, its broker and its workers."""
