"""Recorded runs: how they are made, kept and read."""
