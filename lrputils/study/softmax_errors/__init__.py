"""Where the two suspected errors of LRP at the softmax sit, layer by layer.

The paper suspects a structural bias and a linearisation error and measures neither. `blocks` takes
each attention block apart, token by token; `measures` makes numbers of it, text by text; `ablation`
says which layers gain from CP-LRP's rule.
"""

from lrputils.study.softmax_errors.ablation import (
    RAW,
    SUM_TO_ONE,
    halves,
    late_minus_early,
    single_layer_gains,
)
from lrputils.study.softmax_errors.blocks import SoftmaxMaps, softmax_maps
from lrputils.study.softmax_errors.measures import MEASURES, layer_errors, measures
