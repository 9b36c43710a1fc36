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
)
from lrputils.linear_attention.attribution import (
    BASELINES,
    READOUTS,
    REMOVALS,
    attnlrp,
    attnlrp_with_epsilon,
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
