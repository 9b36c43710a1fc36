"""Where the two suspected errors of LRP at the softmax sit, layer by layer.

The paper suspects a structural bias and a linearisation error and measures neither. `ablation` says
what replacing AttnLRP's rule in some layers gained; `blocks` takes each attention block apart,
token by token; `measures` makes numbers of it, text by text; `gauge` says which of them are numbers
of the function at all.
"""

from lrputils.study.softmax_errors.ablation import (
    RAW,
    SUM_TO_ONE,
    aligned,
    beside,
    curves,
    halves,
    late_minus_early,
    layer_count,
    named,
    published_halves,
    published_late_minus_early,
    single_layer_gains,
)
from lrputils.study.softmax_errors.blocks import SoftmaxMaps, softmax_maps
from lrputils.study.softmax_errors.gauge import CHANGES, INSIDE, moved_by, reparameterised
from lrputils.study.softmax_errors.measures import (
    MEASURES,
    estimates_by_layer,
    layer_errors,
    measures,
    per_layer,
)
