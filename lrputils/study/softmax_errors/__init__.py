"""Where the two suspected errors of LRP at the softmax sit, layer by layer.

The paper suspects a structural bias and a linearisation error and measures neither. `blocks` takes
each attention block apart, token by token; `measures` makes numbers of it, text by text; `ablation`
says what replacing AttnLRP's rule in single layers gained, to compare with them.
"""

from lrputils.study.softmax_errors.ablation import (
    RAW,
    SUM_TO_ONE,
    aligned,
    beside,
    curves,
    late_gains,
    late_minus_early,
    layer_count,
    named,
    published_late_minus_early,
    single_layer_gains,
)
from lrputils.study.softmax_errors.blocks import SoftmaxMaps, softmax_maps
from lrputils.study.softmax_errors.gauge import CHANGES, INSIDE, reparameterised
from lrputils.study.softmax_errors.measures import (
    MEASURES,
    estimates_by_layer,
    layer_errors,
    measures,
    per_layer,
)
