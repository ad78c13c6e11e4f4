"""Screens read from files, with counts or normalised expression."""
