"""What an evaluation costs: time before it starts, time and memory after it, digits lost.

    plan = cost.forecast(clf, texts)               # seconds, part by part
    with cost.measured(clf.device) as spent: ...   # seconds and peak memory of the real work
    cost.precision_error(clf, texts)               # what faster matrix products change

`lrputils.study.cost.operations` counts what leave-one-out computes;
`lrputils.study.cost.bench` measures the package's own claims of speed.
"""

from lrputils.study.cost.clock import Spent, measured, timed
from lrputils.study.cost.forecasts import Forecast, forecast
from lrputils.study.cost.precision import matmul_precision, precision_error
