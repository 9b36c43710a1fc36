"""Runs that are kept: what a chapter quotes beside its own, live one."""
