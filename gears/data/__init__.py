"""Screens: reading and checking, per-condition statistics, splits and loaders."""
