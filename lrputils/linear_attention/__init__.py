"""The paper's linear attention network, its exact attributions, and trained weights.

    network = load_shipped(Setting("learned", "mean", "standard"), seed=0)
    maps = explain(network, images)        # "LOO", "IG", "(QKᵀ)V", "Q(KᵀV)", "3-ary"

Pixels are tokens and there is no softmax. Nothing here draws.
"""

from lrputils.linear_attention.agreement import (
    GRAPHS,
    PAIRS,
    agreement,
    compared,
    crossed_estimate,
    estimates,
    negative_sums,
)
from lrputils.linear_attention.attribution import (
    BASELINES,
    READOUTS,
    REMOVALS,
    attnlrp,
    attnlrp_with_epsilon,
    completeness_gap,
    explain,
    integrated_gradients,
    leave_one_out,
    leave_one_out_by_passes,
    paths,
    removal_curves,
)
from lrputils.linear_attention.model import (
    FACTORIZATIONS,
    LEFT,
    RIGHT,
    SETTINGS,
    TERNARY,
    LinearAttention,
    Projected,
    Setting,
    path_shares,
)
from lrputils.linear_attention.specifications import (
    distinct,
    measured,
    nearest_first,
    of_reading,
    specifications,
)
from lrputils.linear_attention.training import (
    SHIPPED,
    accuracy,
    is_shipped,
    load_shipped,
    networks,
    rounded,
    save_networks,
    train,
)
