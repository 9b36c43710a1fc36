"""Product trees, and exact attributions on them.

    x1, x2, x3 = products.symbols([2, 3, 4])
    products.relevance((x1 * x2) * x3)          # x1: 6, x2: 6, x3: 12
    products.relevance(x1 * (x2 * x3))          # x1: 12, x2: 6, x3: 6
    products.leave_one_out(x1 * (x2 * x3))      # 24 each, however it is bracketed

Everything is computed in fractions. Trees know products only, and there are no tensors.
"""

from lrputils.products.attributions import (
    Visit,
    flow,
    integrated_gradients,
    leave_one_out,
    relevance,
    shapley,
    shares,
)
from lrputils.products.trees import (
    MAX_FACTORS,
    Factor,
    Node,
    Product,
    bracketings,
    exact,
    flatten,
    leaf_depths,
    leaves,
    parse,
    product,
    symbols,
    value_at,
)
