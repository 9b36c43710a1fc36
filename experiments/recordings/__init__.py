"""Recordings: what chapters quote and nobody needs as a verb.

Each kind has a `measure(classifier, texts, *, batch_size, max_length, …)`, which returns a row a
text and whatever the module's first lines say. `python -m experiments.recordings KIND` writes the
rows with their provenance; a killed recording goes on by the same command.
"""
