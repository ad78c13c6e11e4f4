"""Compatibility with cell-gears: its file formats, names and functions."""
