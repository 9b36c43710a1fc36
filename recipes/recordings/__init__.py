"""Recordings that are no plain maps: what chapters quote and nobody needs as a verb.

Each module has `measure(classifier, texts, *, max_length, …)`, which returns a row a text and
whatever the module's first lines say. `python -m recipes.recordings` writes the rows with their
provenance, in shards that a killed run goes on from.
"""
