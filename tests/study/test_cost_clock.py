"""Time and memory are those of the block's own work."""

from __future__ import annotations

import time

import pytest
import torch

from lrputils.study import cost
from lrputils.study.evaluation import evaluate

WORDS = ("dull", "a film that is never dull", "not a bad book")


def test_time_and_memory_of_the_block():
    with cost.measured("cpu") as spent:
        time.sleep(0.05)
        held = torch.ones(30_000_000)
    assert 0.05 <= spent.seconds < 5
    assert spent.peak_bytes > held.nbytes


def test_throughput_is_texts_and_tokens_over_seconds(placeholder):
    result = evaluate(placeholder, WORDS, [], progress=False)
    spent = cost.Spent(torch.device("cpu"), seconds=2.0, peak_bytes=2.0**31)
    facts = spent.table(result)["this run"]
    assert facts["texts a second"] == 1.5
    assert facts["tokens a second"] == sum(map(len, result.tokens)) / 2
    assert facts["peak memory, GiB"] == 2


def test_an_exception_passes_and_is_timed():
    with pytest.raises(KeyError), cost.measured("cpu") as spent:
        raise KeyError
    assert spent.seconds >= 0
