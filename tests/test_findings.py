"""What chapters say of their tables and figures holds for the values that these show.

`findings.yml` has it sentence by sentence, as a list of checks with these keys:

    in      the chapter and the table or figure of it, or recorded rows: a name in `SOURCES`
    where   a query; of rows that pass it,
    gap     the second of two methods is subtracted from the first, text by text: the columns are
            those of `lrputils.study.agreement.compare`, with its `by`, `of` and `column`
    across  this column's values become columns: "value MiniLM", "low MiniLM"
    then    another query
    each    the rest is said of each group by these columns
    top     of a group, only the row where this column is largest; `bottom`, smallest
    rows    how many rows there are by now
    holds   expressions of pandas, each true in every row

What no such line says is a function below.
"""

from functools import cache, partial
from itertools import combinations, permutations
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
import yaml

import experiments.linear_attention as la
import lrputils as lrp
from experiments import bench, frame, layers, paper, price, spoken, zoo
from experiments.attention import attention_matters
from experiments.recordings.factorial import FACTORS
from lrputils import stats
from lrputils.book.layout import find_book
from lrputils.book.results_page import read_tables
from lrputils.removal.coalitions import REMOVALS
from lrputils.report import audit_answers as answers
from lrputils.runs import results
from lrputils.study.agreement import (
    COEFFICIENTS,
    COUNTED,
    EVERY,
    RAW,
    SUM_TO_ONE,
    WORDS,
    agreement,
    compare,
)

BOOK = find_book()
MINI, SIX, FULL = frame.MINILM, frame.MPNET6, frame.MPNET
SENTENCES = ["minilm-sst2", "mpnet-sst2"]


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch):
    """Of what has no interval of a formula, as a rank correlation; the chapters draw 10,000."""
    monkeypatch.setattr(stats, "_RESAMPLES", 1_000)


# --- recorded rows --------------------------------------------------------------------------------


def sst_at_words():
    """r and curves of every method, LRP read at the words."""
    return frame.read_rows("sst", SENTENCES).query("family == '' and readout == 'word'")


def reviews_at_words():
    return frame.read_rows("reviews").query("family == '' and readout == 'word'")


def recorded_lrp(kind):
    """r of the two LRP variants in all layers, of the two models."""
    rows = frame.read_rows(kind).query("family == '' and method in ['attnlrp', 'cp-lrp']")
    return rows[rows.model != SIX]


def halves(kind):
    """r of AttnLRP with CP-LRP's rule in one half of the layers."""
    return layers.name_sets(frame.read_rows(kind))


def errors_by_class():
    """How far AttnLRP's path follows removals in either half of the layers, by predicted class."""
    rows = frame.read_rows("softmax", SENTENCES)
    middle = rows.groupby("model").layer.transform("max") / 2
    rows["half"] = np.where(rows.layer > middle, "later", "earlier")
    called = frame.read_rows("sst", SENTENCES)[["model", "id", "target"]].drop_duplicates()
    by = ["model", "id", "target", "half"]
    return rows.merge(called, on=by[:2]).groupby(by).r_softmax_attended.mean().reset_index()


def specifications():
    """r of AttnLRP and CP-LRP with LOO, under every specification."""
    maps = frame.read_maps("maps", runs=SENTENCES)
    maps = maps[(maps.options == "") & maps.method.isin(["loo", "attnlrp", "cp-lrp"])]
    return agreement(maps, COUNTED, [RAW, SUM_TO_ONE], [*COEFFICIENTS])


def at_the_sum(*kinds):
    """Maps of sentences, LRP's read at the sum."""
    maps = frame.read_maps(*kinds, runs=SENTENCES)
    maps = maps[(maps.options == "") & maps.removal.isin(["", "attention-mask"])]
    return maps[maps.readout.isin(["", "sum"])]


def below_zero():
    maps = at_the_sum("maps").query("method in ['attnlrp', 'loo']")
    below = maps.assign(below=[float(scores[0] < 0) for scores in maps.scores])
    return below[["model", "id", "method", "below"]]


@cache
def prices():
    """Maps of all that chapter 7 puts a price on."""
    return price.read_maps()


def by_rank():
    named = prices().dropna(subset="map").query("readout in ('', 'word')")
    return agreement(named, [WORDS], coefficients=["Spearman"])


@cache
def words():
    """By numpy alone: whether LOO's top word is found, and r over the other words."""
    named = prices().query("readout in ['', 'word']").dropna(subset="map")
    ways, rows = {price.ATTN_LRP, price.ONE, price.HALVES, price.THREE}, []
    for text, part in named.groupby(price.TEXT):
        own = np.array(part.content.iloc[0])
        scores = {m: np.array(x)[own] for m, x in zip(part["map"], part.scores, strict=True)}
        loo = scores[price.LOO]
        top, row = np.abs(loo).argmax(), dict(zip(price.TEXT, text, strict=True))
        others = np.arange(len(loo)) != top
        for way in scores.keys() & ways if len(loo) > 3 else ():
            found = np.abs(scores[way]).argmax() == top
            r = np.corrcoef(scores[way][others], loo[others])[0, 1]
            rows.append(row | {"map": way, "top": float(found), "r": r})
    return pd.DataFrame(rows)


def with_shapley(run, yardstick="shapley"):
    """By numpy alone: r of each text's maps with its Shapley values."""
    rows = frame.read_maps("yardstick", runs=[run])
    maps = rows.pivot(index="id", columns="method", values="scores")
    maps = maps[maps["loo"].map(len) > 2].dropna(subset=yardstick)
    names = ["attnlrp", "cp-lrp", "mask-gradient", "ig", "grad-x-input", "loo"]
    pairs = maps[names].melt(ignore_index=False, value_name="scores").join(maps[yardstick])
    r = [np.corrcoef(a, b)[0, 1] for a, b in zip(pairs.scores, pairs[yardstick], strict=True)]
    return pairs.assign(r=r).reset_index()


def by_rules():
    """r of each text with some of LRP's rules, and by Shapley's definition what each adds to it."""
    asked = spoken.read_prompted(kind="factorial").assign(data="prompts")
    rows = pd.concat([frame.read_rows("factorial"), asked])
    r = rows.pivot(index=["readout", "model", "data", "id"], columns=[*FACTORS], values="r_content")
    adds = dict.fromkeys(FACTORS[:3], 0.0)
    for order in permutations(adds):
        on = dict.fromkeys(adds, False)
        for name in order:
            before = r[*on.values(), False]
            on[name] = True
            adds[name] = adds[name] + (r[*on.values(), False] - before) / 6
    parts = {
        "norm": adds["norm"],
        "activation and halving": adds["activation"] + adds["halving"],
        "AttnLRP": r[True, True, True, False],
        "AttnLRP without the norm's": r[False, True, True, False],
        "AttnLRP, softmax closed": r[True, True, True, True],
        "CP-LRP": r[True, True, False, True],
    }
    return pd.concat(parts, names=["part"]).rename("r").reset_index()


def prompted(*asked):
    """Each sentence's r with LOO behind a prompt."""
    return frame.named(agreement(spoken.read_prompted(*asked), [WORDS]))


def of_all_tokens(rows):
    return frame.named(agreement(rows, [EVERY]))


def without_the_first(rows):
    """Maps of the other tokens."""
    rest = {name: [values[1:] for values in rows[name]] for name in ("scores", "content")}
    return rows.assign(**rest)


def share_of_the_first():
    maps = frame.named(spoken.read_prompted())
    share = [abs(x[0]) / np.abs(x).sum() for x in maps.scores]
    return maps.assign(share=share)[["model", "id", "method", "share"]]


def prompted_by_deletion():
    maps, deleted = spoken.read_prompted(), spoken.read_prompted("-delete")
    maps = maps[maps.method.isin(["mask-gradient", "attnlrp", "cp-lrp"])]
    exact = deleted[deleted.method == "loo"].assign(removal="attention-mask")
    return frame.named(agreement(pd.concat([exact, maps]), [WORDS]))


def prompted_curves():
    rows = spoken.read_prompted("-curves")
    return frame.named(rows.assign(delta=rows.lerf - rows.morf))


def answers_to(unit):
    return spoken.compare_answers(unit).reset_index()


SOURCES = {
    "sst at the words": sst_at_words,
    "reviews at the words": reviews_at_words,
    "LRP on sst": partial(recorded_lrp, "sst"),
    "halves of sst": partial(halves, "sst"),
    "halves of reviews": partial(halves, "reviews"),
    "error of later layers by class": errors_by_class,
    "r under every specification": specifications,
    "whether a map's first score is below zero": below_zero,
    "canonised at the sum, all tokens": lambda: agreement(at_the_sum("canon", "maps"), [EVERY]),
    "table 2 of the paper": lambda: paper.printed("table_2").reset_index(),
    "prices": lambda: price.compare_with_loo(prices()),
    "prices by rank": by_rank,
    "words": words,
    "curves": price.read_curves,
    **{f"shapley {run}": partial(with_shapley, run) for run in [*SENTENCES, "minilm-imdb"]},
    "exact shapley mpnet-sst2": partial(with_shapley, "mpnet-sst2-exact", "shapley-exact"),
    "prompted logit": partial(prompted, "-outputs", "logit"),
    "prompted log-probability": partial(prompted, "-outputs", "log-probability"),
    "prompted curves": prompted_curves,
    "prompted by deletion": prompted_by_deletion,
    "prompted, all tokens": lambda: of_all_tokens(spoken.read_prompted()),
    "prompted, all but the first": lambda: of_all_tokens(without_the_first(spoken.read_prompted())),
    "prompted, share of the first token": share_of_the_first,
    **{f"answers {unit}": partial(answers_to, unit) for unit in spoken.UNITS},
    "rules": by_rules,
}

# --- sentences of which a line is enough ----------------------------------------------------------

TEXT = (Path(__file__).parent / "findings.yml").read_text(encoding="utf-8")
CHECKS = [
    pytest.param(check, id=f"{sentence} {number}")
    for sentence, checks in yaml.safe_load(TEXT).items()
    for number, check in enumerate(checks, 1)
]
FIELDS = [
    "in",
    "where",
    "gap",
    "by",
    "of",
    "column",
    "across",
    "then",
    "each",
    "top",
    "bottom",
    "rows",
    "holds",
]
LEVELS = ["first", "second", "third", "fourth"]
MODELS = {SIX: "MPNet6"} | {n: n.split(",")[0] for n in (MINI, FULL, *spoken.MODELS.values())}
A3 = paper.ablations("SST-2").r
KNOWN = {"TRACKS": answers.TRACKS, "PAPER_S_HALVES": A3["back", 7] - A3["front", 6]}


@cache
def tables(chapter):
    """The values that a committed chapter shows, by the name of the table or figure."""
    return read_tables(nbformat.read(BOOK.chapter(chapter).with_suffix(".ipynb"), 4))


def short(label):
    """Call a model by its first word, and write a label on one line."""
    for name, first_word in MODELS.items() if isinstance(label, str) else ():
        label = label.replace(name, first_word).replace("\n", " ")
    return label


@cache
def rows_of(place):
    """A shown table or recorded rows, with every level of an index as a column."""
    if place in SOURCES:
        rows = SOURCES[place]()
        return rows.assign(model=rows.model.map(short)) if "model" in rows else rows
    chapter, name = place.split()
    table = tables(chapter)[name].rename(index=short, columns=short)
    return table.rename_axis(LEVELS[: table.index.nlevels]).reset_index()


@cache
def gaps(place, where, gap, by, **how):
    """What `compare` says of recorded rows, computed once for all lines that ask it."""
    rows = rows_of(place).query(where) if where else rows_of(place)
    return compare(rows, *gap, by, **how).reset_index()


def spread(rows, name):
    """The values of a column as columns."""
    keys = [
        key for key in (*LEVELS, "readout", "model", "data", "id") if key in rows and key != name
    ]
    wide = rows.pivot(index=keys, columns=name)
    wide.columns = [f"{column} {value}" for column, value in wide.columns]
    return wide.reset_index()


def selected(check):
    """The rows that a check is about, of all its groups."""
    where = check.get("where", "")
    if "gap" in check:
        by = check.get("by", [])
        by = (by,) if isinstance(by, str) else tuple(by)
        how = {key: check[key] for key in ("of", "column") if key in check}
        rows = gaps(check["in"], where, tuple(check["gap"]), by, **how)
    else:
        rows = rows_of(check["in"]).query(where) if where else rows_of(check["in"])
    if "across" in check:
        rows = spread(rows, check["across"])
    return rows.query(check["then"]) if "then" in check else rows


@pytest.mark.parametrize("check", CHECKS)
def test_what_a_sentence_says_holds(check):
    assert {*check} <= {*FIELDS}
    rows = selected(check)
    assert len(rows) == check.get("rows", len(rows)) > 0
    holds = check.get("holds", [])
    for _, part in rows.groupby(check["each"]) if "each" in check else [("", rows)]:
        if "top" in check:
            part = part.nlargest(1, check["top"])
        if "bottom" in check:
            part = part.nsmallest(1, check["bottom"])
        for said in [holds] if isinstance(holds, str) else holds:
            held = np.asarray(part.eval(said, local_dict=KNOWN))
            assert (held.dtype, held.all()) == (bool, True), f"{said}\n{part.to_string()}"


# --- sentences that take more ---------------------------------------------------------------------


def test_cp_lrp_is_higher_by_less_than_half_of_what_the_paper_prints():
    by = ("model", "removal", "readout", "counted", "normalisation", "coefficient")
    gaps_of_all = gaps("r under every specification", "", ("attnlrp", "cp-lrp"), by)
    printed = paper.printed("table_2").r["sst"]
    assert 0 < -gaps_of_all.value.min() < (printed["cp-lrp"] - printed["attnlrp"]) / 2


def test_never_and_dull_are_the_reason_by_each_removal_and_maps_differ_about_dull(clf):
    """Of LRP and of the mask gradient chapters 3 and 7 assert it."""
    inputs = clf.encode("a film that is never dull")
    own = inputs.content_mask[0]
    words = np.array(inputs.tokens[0])[own.numpy()]

    for removal in REMOVALS:
        lost = lrp.leave_one_out(clf, inputs, removal=removal, progress=False)[0, own]
        assert [*words[lost.topk(2).indices]] == ["never", "dull"]
    shapley = lrp.attribute(clf, inputs, "shapley")[0, own]
    assert shapley[words == "dull"] < 0
    loo, estimate = (lrp.attribute(clf, inputs, m)[0, own] for m in ("loo", "mask-gradient"))
    never, dull = words == "never", words == "dull"
    assert 0.3 < float(estimate[never] / loo[never]) < 0.36
    assert abs(float(estimate[dull] - estimate[never])) < 0.05


class TestLayers:
    def test_where_the_rule_helps_differs_by_the_way_layers_are_chosen(self):
        for name in ("fig-ablation", "fig-ablation-delta"):
            for _, panel in tables("05_layer_ablation")[name].groupby(level=[0, 1]):
                assert len({*panel.value.groupby(level=2).idxmax().str[3]}) > 1

    def test_delta_rests_on_as_many_texts_as_the_captions_say(self):
        counts = frame.read_rows("sst"), frame.read_rows("imdb"), frame.read_rows("curves")
        single = pd.concat(counts).query("family == 'single'").dropna(subset="delta")
        texts = single.groupby(["data", "model"]).id.nunique()
        said = {("SST-2", MINI): 208, ("SST-2", FULL): 100, ("IMDB", MINI): 60, ("IMDB", FULL): 12}
        assert texts.to_dict() == said

    def test_the_rule_in_mpnet_s_last_layer_raises_delta(self):
        curves = frame.read_rows("curves", ["mpnet-sst2"])
        curves = curves.query("removal == 'attention-mask' and readout == 'word'").set_index("id")
        last = curves[(curves.family == "single") & (curves.layer == 12)].delta
        plain = curves[(curves.family == "") & (curves.method == "attnlrp")].delta
        assert stats.estimate(last - plain, method="t").low > 0

    def test_on_reviews_only_minilm_s_r_moves(self):
        rows = frame.read_rows("reviews")
        rows = rows[(rows.readout == "sum") & (rows.family == "front")]
        means = rows.groupby(["model", "layer"]).r_normalised.mean()
        printed = paper.ablations("IMDB").r["front"]
        for flat in (printed, means[FULL]):
            assert flat.max() - flat.min() < 0.06
        assert means[MINI].is_monotonic_decreasing

    def test_the_taylor_estimate_errs_less_in_the_later_half(self):
        rows = frame.read_rows("softmax")
        middle = rows.groupby("model").layer.transform("max") / 2
        rows["half"] = np.where(rows.layer > middle, "later", "earlier")
        by = ["model", "data", "id", "half"]
        means = rows.groupby(by).linearisation.mean().reset_index()
        gap = compare(means, "later", "earlier", by[:2], of="half", column="linearisation")
        assert len(gap) == 4
        assert (gap.high < 0).all()


class TestTableA3:
    """What the page of claims says of the paper's own table."""

    @pytest.mark.parametrize(("data", "sign"), [("SST-2", 1), ("IMDB", -1)])
    def test_r_and_delta_do_not_rise_together_and_halves_differ_by_task(self, data, sign):
        full = paper.ablations(data)
        sets = full.drop(["attnlrp", "cp-lrp"], level=0)
        assert sets.r.corr(sets.delta) < 0
        later = sets.loc["back", 7] - sets.loc["front", 6]
        assert sign * later.r > 0 > sign * later.delta
        assert full.r.max() > full.r["cp-lrp", 0]
        assert full.lerf["cp-lrp", 0] > full.lerf["attnlrp", 0]

    @pytest.mark.parametrize(("data", "peaks"), [("SST-2", [2, 7, 10]), ("IMDB", [7, 9])])
    def test_where_single_layers_peak(self, data, peaks):
        alone = paper.ablations(data).r["single"]
        higher = (alone > alone.shift()) & (alone > alone.shift(-1))
        assert [*alone.index[higher]] == peaks


class TestReviews:
    def test_cp_lrp_s_lead_falls_with_length_and_redundancy_is_not_why(self):
        """At the sum, maps divided by their sums."""
        leads = {kind: lead_of_cp_lrp(recorded_lrp(kind)) for kind in ("sst", "reviews")}
        for model, kind in ((MINI, "sst"), (MINI, "reviews"), (FULL, "reviews")):
            assert trend(leads[kind].loc[model], "lead", "tokens").high < 0
        unsure = trend(leads["sst"].loc[FULL], "lead", "tokens")
        assert unsure.low < 0 < unsure.high
        pairs = frame.read_rows("yardstick", ["minilm-sst2", "mpnet-sst2"])
        pairs = pairs[pairs.method == "interactions"].set_index(["model", "id"])
        share = [i[i > 0].sum() / np.abs(i).sum() for i in pairs.scores]
        pairs = leads["sst"].assign(share=pd.Series(share, pairs.index)).dropna()
        for model in (MINI, FULL):
            assert trend(pairs.loc[model], "lead", "share").low > 0


def lead_of_cp_lrp(rows):
    """Each text's lead of CP-LRP, and its length."""
    wide = rows[rows.readout == "sum"].pivot(
        index=["model", "id", "tokens"], columns="method", values="r_normalised"
    )
    return (wide["cp-lrp"] - wide["attnlrp"]).rename("lead").dropna().reset_index("tokens")


def trend(rows, first, second):
    """Spearman's ρ of two columns, with its interval."""

    def spearman(one, other, axis):
        rho = lrp.spearman(np.atleast_2d(one), np.atleast_2d(other))
        return rho if np.ndim(one) > 1 else rho[0]

    pair = (rows[name].to_numpy(float) for name in (first, second))
    return lrp.estimate(*pair, statistic=spearman)


class TestLinearAttention:
    def test_table_1_is_nearer_and_has_its_signs_with_left_as_qk_first(self):
        near = settings_of_mnist()
        printed = paper.printed("table_1").drop_duplicates("pair").set_index("pair").r
        pair = [f"{la.LEFT} vs LOO", f"{la.RIGHT} vs LOO"]
        swapped = printed.rename(dict(zip(pair, pair[::-1], strict=True)))
        misses = [
            (near[[la.GRAPHS, *pair]] - p[[la.GRAPHS, *pair]]).abs().max(axis=1)
            for p in (printed, swapped)
        ]
        assert misses[1].min() < 0.55 * misses[0].min()
        best = near.loc[misses[1].idxmin()]
        assert best[pair[0]] > 0 > best[pair[1]]
        same_signs = (near[pair[0]] < 0) & (near[pair[1]] > 0)
        assert not same_signs.any()  # those of the paper under the labels of its Section 4.3
        of_ig = near[["IG vs LOO", "IG from white vs LOO"]] - printed["IG vs LOO"]
        both = pd.concat([misses[1], of_ig.abs().min(axis=1)], axis=1).max(axis=1)
        assert both.min() > 2 * misses[1].min()

    def test_the_stabiliser_moves_no_mean(self):
        """The page of claims: at the paper's 10⁻⁶, in a network of each setting."""
        kept = results.load("mnist", "epsilon").rows
        at = kept.pivot(
            index=["setting", "seed", "removal", "pair"], columns="epsilon", values="r_normalised"
        )
        at = at[~at.index.get_level_values("pair").str.endswith("ε = 0")]
        assert (at[1e-6] - at[0.0]).abs().max() < 0.005


def settings_of_mnist():
    """Mean r after sum-to-one of each recorded setting of 80% accuracy or more, by pair."""
    rows = [results.load("mnist", run).rows for run in ("linear-attention", "other-networks")]
    rows = pd.concat(rows).astype({"setting": str, "removal": str, "pair": str, "r": float})
    rows["r"] = rows.r.where(~rows.flipped, -rows.r)
    able = rows.groupby(["setting", "seed"]).accuracy.first().groupby("setting").median() >= 0.8
    means = rows[rows.setting.map(able)].groupby(["pair", "setting", "removal"]).r.mean()
    graphs = means[la.GRAPHS].droplevel("removal").rename(la.GRAPHS)
    return means.drop(la.GRAPHS).unstack("pair").join(graphs, on="setting")


class TestCost:
    def test_a_plain_loop_is_further_behind_on_a_gpu(self):
        loops = []
        for run in ("untrained-6x384", "h200-6x384", "h200-12x768"):
            rows, _ = bench.load(run)
            rows = pd.concat([rows["loo-sentences"], rows["loo-review"]])
            loops.append(rows[rows.side == "plain loop"].ratio)
        assert loops[0].max() < min(loops[1].min(), loops[2].min())


def test_the_figure_of_words_shows_their_rows():
    shown = tables("07_remedy")["fig-words"].value
    means = words().groupby(["data", "model", "map"])[["top", "r"]].mean()
    for way in (price.ATTN_LRP, price.ONE, price.HALVES):
        of_run = means.loc["SST-2", MINI, way]
        panels = "texts whose top word is found, share", "the words after the first, mean r"
        for panel, value in zip(panels, (of_run.top, of_run.r), strict=True):
            assert shown[panel, way, "MiniLM, sentences"] == pytest.approx(value, abs=1e-4)


def test_three_questions_carry_half_of_what_attnlrp_is_ahead_by():
    r = rows_of("answers sentences").pivot(index="id", columns="map", values="r")
    gap = np.sort(r["AttnLRP"] - r["Mask gradient"])
    assert gap[-3:].sum() > 0.5 * gap.sum()


def test_a_surrogate_of_64_passes_asks_of_reviews_ten_times_what_loo_does():
    asked = spoken.read_answers("reviews").drop_duplicates("id")
    assert 9 < 64 / (asked.own.map(np.sum).mean() + 1) < 11


def test_the_appendix_says_the_package_s_numbers():
    page = (BOOK.root / "chapters/statistics.md").read_text("utf-8")
    assert f"from {answers.FEWEST} to {answers.MOST:,}" in page
    assert f"Fewer than {answers.FEWEST} texts" in page
    assert f"$m = {answers.MARGIN}$" in page
    draws = "Draw {}, {} or {} texts".format(*answers.FALSE_LEADS)
    assert draws in page
    assert {*answers.FALSE_LEADS.values()} <= {0.04, 0.05}


class TestArchitectures:
    def test_small_text_models_use_attention_little(self):
        reviews = lrp.load_texts(limit=80, seed=0)
        for name in ("bert", "qwen3"):
            fall = attention_matters(zoo.load(name), reviews)["fall"]
            assert 0.05 < fall.value < 0.12

    @pytest.mark.parametrize("name", ["llama", "qwen3"])
    def test_brackets_of_a_gate_hardly_move_what_tokens_get(self, name):
        clf = zoo.load(name)
        texts = clf.encode([*lrp.load_texts(limit=20, seed=0)], truncate=True)
        first = lrp.attribute(clf, texts, lrp.ATTN_LRP)
        for rule in ("quarter-up", "third-up", "gate-held"):
            other = lrp.attribute(clf, texts, lrp.ATTN_LRP.but(product=rule))
            assert lrp.pearson(other, first, texts.content_mask).min() > 0.99
            assert (other - first).abs().max() > 0


@cache
def r_of_maps():
    """Each text's r over own tokens by (method, read-out), on five recorded runs."""
    wide = {}
    for run in frame.RUNS:
        rows = results.load(run.split("-")[1].rstrip("2"), run).rows
        own = rows.query("family == '' and method not in ['loo', 'smoothgrad']")
        wide[run] = own.pivot(index="id", columns=["method", "readout"], values=answers.R)
        wide[run] = wide[run].dropna(axis=1, how="all").astype(float)
    return wide


@pytest.mark.parametrize("n", answers.FALSE_LEADS)
class TestErrorRates:
    """What the appendix says of how a lead is decided."""

    def test_of_methods_that_tie_a_verdict_calls_one_ahead_seldom(self, n):
        random, verdicts, by_mean = np.random.default_rng(0), {}, {}
        for run, wide in r_of_maps().items():
            for one, other in combinations(wide, 2):
                gap = (wide[one] - wide[other]).dropna().to_numpy()
                for centre in (np.mean, np.median):
                    few = gap[random.integers(0, len(gap), (n, 400))] - centre(gap)
                    verdicts[run, one, other, centre] = np.mean(stats.leads(few) != 0)
                    low, high = stats.t_interval(few)
                    if centre is np.mean:
                        by_mean[run, one, other] = np.mean((low > 0) | (high < 0))
        assert max(verdicts.values()) <= answers.FALSE_LEADS[n] + 0.01
        assert max(by_mean.values()) > 2 * answers.FALSE_LEADS[n]
        assert "imdb" in max(by_mean, key=by_mean.get)[0]

    def test_of_maps_at_the_bound_a_verdict_says_yes_as_seldom(self, n):
        random = np.random.default_rng(0)
        for wide in r_of_maps().values():
            maps = wide[["attnlrp", "cp-lrp"]]
            maps = (maps - maps.mean() + answers.TRACKS).dropna().to_numpy()
            few = maps[random.integers(0, len(maps), (n, 400))]
            best = few.mean(axis=0).argmax(axis=1)[None, :, None]
            best = np.take_along_axis(few, best, 2)[..., 0] - answers.TRACKS
            said = stats.leads(best, 1 - 0.05 / maps.shape[1], doubt=answers.TRACKS)
            assert np.mean(said > 0) <= answers.FALSE_LEADS[n] + 0.01

    def test_no_interval_of_a_skewed_mean_covers_95_percent(self, n):
        wide = r_of_maps()["minilm-imdb"].xs("word", axis=1, level="readout")
        gap = (wide["mask-gradient"] - wide["attnlrp"]).dropna().to_numpy()
        draws = np.random.default_rng(0).choice(gap, (400, n))
        for method in ("t", "hall"):
            ends = [stats.estimate(few, method=method) for few in draws]
            covered = np.mean([e.low <= gap.mean() <= e.high for e in ends])
            assert covered < 0.93
