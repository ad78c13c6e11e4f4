"""Checks of a screen before it is prepared: layout, labels, values and settings."""
