"""Prepared screens: their files, cells, moments and statistics."""
