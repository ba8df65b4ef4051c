"""Speak to databases: each dialect's text, drivers and rows, behind the same verbs. Decides nothing."""
