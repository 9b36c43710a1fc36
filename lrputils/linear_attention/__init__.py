"""The paper's linear attention network, its exact attributions, and trained weights.

    network = load_shipped(Setting("learned", "mean", "standard"), seed=0)
    maps = explain(network, images)        # "LOO", "IG", "(QKᵀ)V", "Q(KᵀV)", "3-ary"

Pixels are tokens and there is no softmax. Nothing here draws.
"""

from lrputils.linear_attention.agreement import (
    PAIRS,
    agreement,
    crossed_estimate,
    estimates,
    nearest_first,
    negative_sums,
    recorded_specifications,
    specifications,
)
from lrputils.linear_attention.attribution import (
    BASELINES,
    READOUTS,
    REMOVALS,
    Paths,
    attnlrp,
    completeness_gap,
    explain,
    integrated_gradients,
    leave_one_out,
    leave_one_out_by_passes,
    paths,
)
from lrputils.linear_attention.model import (
    FACTORIZATIONS,
    LEFT,
    RIGHT,
    TERNARY,
    LinearAttention,
    Projected,
    Setting,
    path_shares,
)
from lrputils.linear_attention.training import (
    SHIPPED,
    accuracy,
    is_shipped,
    load_shipped,
    networks,
    save_networks,
    train,
)

__all__ = [
    "BASELINES",
    "FACTORIZATIONS",
    "LEFT",
    "PAIRS",
    "READOUTS",
    "REMOVALS",
    "RIGHT",
    "SHIPPED",
    "TERNARY",
    "LinearAttention",
    "Paths",
    "Projected",
    "Setting",
    "accuracy",
    "agreement",
    "attnlrp",
    "completeness_gap",
    "crossed_estimate",
    "estimates",
    "explain",
    "integrated_gradients",
    "is_shipped",
    "leave_one_out",
    "leave_one_out_by_passes",
    "load_shipped",
    "nearest_first",
    "negative_sums",
    "networks",
    "path_shares",
    "paths",
    "recorded_specifications",
    "save_networks",
    "specifications",
    "train",
]
