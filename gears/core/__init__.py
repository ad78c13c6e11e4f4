"""Helpers that every other room uses: messages, numbers, progress, findings, options, registry."""
