"""Forecasts count the rows that are really run."""

import re

import numpy as np
import pytest
import torch

import lrputils as lrp
from lrputils.study import cost
from lrputils.study.variants import LayerSweep, Variant, at_every_readout
from tests import tiny

WORDS = (
    "dull",
    "a film that is never dull",
    "not a bad book but the end is far too long for what it has to say " * 2,
)


@pytest.fixture
def one_second_a_token(monkeypatch):
    """Rows, and passes of a map in a batch, that take exactly n seconds for n tokens."""
    monkeypatch.setattr(cost, "_token_second", lambda *_: 1.0)


def forecast(classifier, texts, methods=(), **how):
    return cost.forecast(classifier, texts, methods, **how)


def lengths_of(classifier, texts):
    return [len(classifier.encode(text).tokens[0]) for text in texts]


METHODS = ("rollout", "attnlrp")


class TestForecast:
    def test_a_decoder_runs_part_of_each_row(self, classifier, one_second_a_token, monkeypatch):
        sizes = {"vocab_size": len(classifier.tokenizer), "max_position_embeddings": 64}
        model = tiny.build("gpt2", pad_token_id=classifier.tokenizer.pad_token_id, **sizes)
        decoder = lrp.Classifier(model, classifier.tokenizer, "tiny")
        ran = []
        words, look_up = model.transformer.wte.weight, torch.nn.functional.embedding

        def counted(ids, weight, *how, **named):  # a hook would be refused its shortcuts
            # Under a mode torch comes here a second time, with what is named.
            typed = not ids.any()  # GPT-2 looks token types up among its words
            ran.extend([ids.numel()] if weight is words and not (named or typed) else [])
            return look_up(ids, weight, *how, **named)

        monkeypatch.setattr(torch.nn.functional, "embedding", counted)
        lrp.leave_one_out(model, decoder.encode([WORDS[2]] * 8))
        plan = forecast(decoder, [WORDS[2]] * 8)
        n = lengths_of(classifier, WORDS)[2]
        assert n / 2 < sum(ran) / (8 * n) < 0.8 * n
        assert plan.seconds["loo"] == pytest.approx(sum(ran), rel=0.25)

    @pytest.mark.parametrize("chunk", [1, 4, 100])
    def test_curves_are_the_rows_that_the_curves_run(
        self, classifier, one_second_a_token, chunk, monkeypatch
    ):
        plan = forecast(classifier, WORDS, METHODS, chunk=chunk)
        ran = []
        monkeypatch.setattr(
            "lrputils.removal.coalitions.evaluate",
            lambda a, texts, rows, read, **k: (
                ran.extend(r.length for r in rows if r.length < len(texts[r.text]) or len(r.hidden))
                or read(torch.zeros(len(rows), 2), torch.tensor([r.text for r in rows]))
            ),
        )
        # One map alone, whose two orders share no row: no rows are saved by chance.
        for text in WORDS:
            inputs, before = classifier.encode(text), len(ran)
            scores = torch.arange(inputs.input_ids.shape[1], dtype=torch.float)[None]
            lrp.perturbation_curves(classifier.model, inputs, scores, chunk)
            del ran[len(ran) - 1 if len(ran) > before else before :]  # the empty one, shared
        maps = 1 + len(METHODS)
        # A last chunk that is shorter makes MoRF and LeRF differ by the tokens it lacks.
        slack = 2 * len(WORDS) * chunk * maps
        assert plan.seconds.get("curves") == pytest.approx(maps * sum(ran), abs=slack)

    def test_other_methods_take_the_passes_of_their_price(self, classifier, one_second_a_token):
        asked = [Variant("loo mask", "loo", {"removal": "mask"}), LayerSweep(["word", "sum"])]
        asked += [Variant("ig", "ig", {"steps": 8}), Variant("half", "budgeted-loo", {"budget": 1})]
        asked += at_every_readout("cp-lrp", model=classifier.model)
        found = forecast(classifier, WORDS, asked).seconds
        n = np.array(lengths_of(classifier, WORDS))
        assert found == pytest.approx(
            {
                "loo": (n * n).sum(),
                "loo mask": (n * n).sum(),
                "layers": (1 + 3 * 2) * n.sum(),
                "ig": 24 * n.sum(),
                "half": (n * n).sum(),  # all exact, without an estimate
                "cp-lrp": 3 * n.sum(),
                "other read-outs": 6 * n.sum(),
            }
        )

    def test_a_token_is_timed_in_a_batch_of_the_text_in_which_half_the_work_is_done(
        self, classifier, monkeypatch
    ):
        ran = []

        def clock(classifier, work, tokens):
            ran.append(tokens)
            return 1.0

        monkeypatch.setattr(cost, "_token_second", clock)
        texts = ["dull " * (n - 2) for n in (3, 4, 30, 40, 50)]
        forecast(classifier, texts, ["grad-x-input"], batch_size=4)
        _, maps = ran  # 1600 of 5025 are half done before 40
        assert maps == 4 * 40 * 3

    def test_a_clock_is_read_after_a_first_time(self, classifier, monkeypatch):
        seconds = [9.0, 6.0]
        monkeypatch.setattr(cost, "timed", lambda device, work: (seconds.pop(0), None))
        assert cost._token_second(classifier, None, 12) == 0.5

    def test_a_long_one_says_what_takes_minutes(self, classifier, monkeypatch):
        monkeypatch.setattr(cost, "_token_second", lambda *_: 1e-4)
        plan = forecast(classifier, ["never dull " * 200] * 30)
        assert plan.total > 300 > plan.shorter["--max-length 256"]
        assert plan.shorter["--limit 20"] == pytest.approx(plan.total * 2 / 3)
        assert re.search(r"^shorter .* with --max-length 256, .* with --limit 20$", str(plan), re.M)
        assert not forecast(classifier, WORDS).shorter

    def test_a_short_one_says_neither_shares_nor_hours(self):
        told = cost.Forecast({"loo": 0.1, "attnlrp": 0.2}, "cpu", texts=1, tokens=9)
        assert "\ntime    under a second on one cpu" in str(told)
        assert not re.search("%|hour", str(told))
        told = str(cost.Forecast({"loo": 40, "attnlrp": 80}, "cpu", texts=1, tokens=9))
        assert "\ntime    about 2.0 minutes on one cpu: loo 33%, attnlrp 67%\n" in told
        assert told.endswith("\ncost    0.0333 device hours")

    def test_cut_texts_cost_less(self, classifier, one_second_a_token):
        plan = forecast(classifier, WORDS, max_length=8)
        lengths = lengths_of(classifier, WORDS)
        assert plan.tokens == sum(min(n, 8) for n in lengths)
        cut = sum(n > 8 for n in lengths)
        assert f"{cut} texts too long, cut\n" in str(plan)
        assert " 0 texts too long\n" in str(forecast(classifier, WORDS))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "under a second"),
        (3, "3.0 seconds"),
        (75.4, "75 seconds"),
        (600, "10 minutes"),
        (9000, "2.5 hours"),
        (864000, "10 days"),
        (5e9, "160 years"),
    ],
)
def test_durations_are_in_units_that_people_use(seconds, text):
    assert cost.duration(seconds) == text
