"""The paper's linear attention network, its exact attributions, and trained weights.

    network = load_shipped(Setting("learned", "mean", "standard"), seed=0)
    maps = explain(network, images)        # "LOO", "IG", "(QKᵀ)V", "Q(KᵀV)", "3-ary"

A token is one pixel, and there is no softmax: attention is a product of three matrices, and since
that product is associative, (QKᵀ)V and Q(KᵀV) are one function. What the paper leaves open
(embedding, pooling, input scaling) is a `Setting`.
"""

from experiments.linear_attention.agreement import (
    ANY,
    GRAPHS,
    PAIRS,
    correlations,
    crossed_estimate,
    distinct,
    under_every_removal,
)
from experiments.linear_attention.figure import draw_maps
from experiments.linear_attention.maps import (
    BASELINES,
    REMOVALS,
    attnlrp,
    emptied,
    explain,
    integrated_gradients,
    leave_one_out,
    mean_gradient,
)
from experiments.linear_attention.network import (
    LEFT,
    RIGHT,
    SETTINGS,
    LinearAttention,
    Setting,
    accuracy,
    check_choice,
    one_thread,
)
from experiments.linear_attention.training import (
    SHIPPED,
    epochs_for,
    load_shipped,
    networks,
    save_networks,
    train,
)
