"""Recorded runs, which a chapter shows beside its own, live one."""
