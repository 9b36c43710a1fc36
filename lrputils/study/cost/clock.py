"""The clock: seconds and peak memory of a block of work, on a CPU or a GPU.

`torch.utils.benchmark` is not used: its timer runs the work twice more before each measurement and
keeps no result, while a forecast has to be cheap and the pairs of `bench` alternate.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from lrputils.study.evaluation import Evaluation


@dataclass
class Spent:
    """What a block of work took; filled in when the block ends.

    `seconds` are wall-clock time; `peak_bytes` on a GPU the most memory that torch held in the
    block, on a CPU the most that the whole process has held so far, NaN where the system does not
    tell.
    """

    device: torch.device
    seconds: float = float("nan")
    peak_bytes: float = float("nan")

    def table(self, evaluation: Evaluation) -> pd.DataFrame:
        """Seconds, throughput over the texts (however often LOO reads them), peak memory in GiB."""
        tokens = sum(map(len, evaluation.tokens))
        facts = {
            "seconds": self.seconds,
            "texts a second": len(evaluation.tokens) / self.seconds,
            "tokens a second": tokens / self.seconds,
            "peak memory, GiB": self.peak_bytes / 2**30,
        }
        return pd.DataFrame({"this run": facts})


@contextmanager
def measured(device: str | torch.device) -> Iterator[Spent]:
    """Measure the time and the peak memory of the block's work on this device."""
    spent = Spent(torch.device(device))
    cuda = spent.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(spent.device)
        torch.cuda.reset_peak_memory_stats(spent.device)
    started = time.perf_counter()
    try:
        yield spent
    finally:
        if cuda:
            torch.cuda.synchronize(spent.device)
        spent.seconds = time.perf_counter() - started
        peak = torch.cuda.max_memory_allocated(spent.device) if cuda else _process_peak()
        spent.peak_bytes = peak


def _process_peak() -> float:
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak) * (1 if sys.platform == "darwin" else 1024)


def timed(device: str | torch.device, work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that `work` takes on this device, and its result."""
    with measured(device) as spent:
        result = work()
    return spent.seconds, result
