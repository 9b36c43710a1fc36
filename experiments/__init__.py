"""How the shipped networks and the recordings were made: `python -m experiments.NAME`."""

import lrputils  # noqa: F401  (before transformers: it keeps torchvision importable)
