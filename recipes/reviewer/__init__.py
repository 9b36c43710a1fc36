"""How the classifier that comes with `lrputils` is made: see README.md."""

import lrputils  # noqa: F401  (before transformers: it keeps torchvision importable)
