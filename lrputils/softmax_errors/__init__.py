"""Where the two suspected errors of LRP at the softmax sit, layer by layer.

The paper suspects a structural bias and a linearisation error and measures neither. `blocks` takes
each attention block apart, token by token; `measures` makes numbers of it, text by text.
"""

from lrputils.softmax_errors.blocks import SoftmaxMaps, softmax_maps
from lrputils.softmax_errors.measures import (
    MEASURES,
    RankAgreement,
    across_layers,
    layer_errors,
    measures,
)

__all__ = [
    "MEASURES",
    "RankAgreement",
    "SoftmaxMaps",
    "across_layers",
    "layer_errors",
    "measures",
    "softmax_maps",
]
