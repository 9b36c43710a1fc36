"""How the shipped networks and the recordings were made: `python -m recipes.NAME`."""

import lrputils  # noqa: F401  (before transformers: it keeps torchvision importable)
