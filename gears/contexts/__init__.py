"""Screens of several contexts and types of perturbation: what is shared between them, put together from their units."""
