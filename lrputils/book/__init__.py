"""Executing, checking and building the book."""
