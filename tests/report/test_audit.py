"""The audit: its numbers beside a slow computation, its answers, its page, its command line."""

import errno
import re
from html import unescape

import numpy as np
import pandas as pd
import pytest

import lrputils as lrp
from lrputils.__main__ import main
from lrputils.data.texts import stream_texts
from lrputils.report import audit, audit_answers, audit_plan
from lrputils.report import audit_sentences as sentences
from lrputils.report.audit_answers import FEWEST
from lrputils.runs import datasets
from lrputils.runs.settings import Settings
from tests import tiny
from tests.book.browser import PHONE, WIDE, unreadable

HOSTILE = '<script>alert("1")</script> & a <b>film</b>'
SETTINGS = Settings(methods=(), part_size=6, batch_size=6)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Twelve texts, ids that repeat; texts and the file's name are hostile."""
    path = tmp_path_factory.mktemp("data") / "seen <img src=x onerror=alert(2)>.csv"
    texts = [f"{text} {HOSTILE}" for text in lrp.load_texts(limit=12)]
    pd.DataFrame({"id": [7] * 12, "text": texts, "label": [0, 1] * 6}).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def done(classifier, table, tmp_path_factory):
    """The folder of a finished audit, killed once in its second part."""
    out, real = tmp_path_factory.mktemp("audit") / "out", datasets.measure_part

    def killed(*given):
        return real(*given) if given[-1].number == 0 else 1 / 0

    given = (classifier, stream_texts(table), out, SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "measure_part", killed)
        with pytest.raises(ZeroDivisionError):
            audit.write_audit(*given, quiet=True, command="lrputils …")
    assert not (out / audit.PAGE).exists()
    assert audit.write_audit(*given, quiet=True, command="lrputils …") == out / audit.PAGE
    return out


@pytest.fixture(scope="module")
def run(done):
    return audit_plan.Audited(datasets.read(done).rows)


@pytest.fixture(scope="module")
def html(done):
    return (done / audit.PAGE).read_text(encoding="utf-8")


class TestNumbers:
    def test_the_verdict_is_of_the_map_with_the_highest_mean(self, run):
        means = run.rows[run.rows.method.isin(audit_plan.LRP) & (run.rows.family == "")]
        means = means.groupby(["method", "readout"])[audit_answers.R].mean()
        assert means.max() == pytest.approx(audit_answers.verdict(run).r.value)

    def test_the_other_removal_is_measured(self, run, classifier, table):
        inputs = classifier.encode(list(pd.read_csv(table).text[:1]))
        rows = run.rows[run.rows.position == 0].set_index("method")
        slow = lrp.leave_one_out(classifier, inputs, removal="mask", progress=False)[0]
        np.testing.assert_allclose(rows.scores["loo removal=mask"], slow, atol=1e-5)

    def test_conventions_are_those_of_the_rows(self, run):
        found = audit_answers.sensitivity(run.maps())
        for name, column in {"none changed": "r_content", "special tokens count": "r"}.items():
            expected = run.per_text(column).attnlrp.mean()
            assert found.one.AttnLRP[name] == pytest.approx(expected, abs=1e-4)
        assert len(found.every) == 3 * 4 * 2 * 3 * 2


@pytest.mark.parametrize(
    ("kind", "options"),
    [("gpt2", {}), ("bert", {"num_labels": 1}), ("bert", {"num_hidden_layers": 1})],
    ids=["decoder", "one output", "one layer"],
)
def test_other_models_are_audited(kind, options, classifier):
    """Without a norm behind the embeddings, a second class, or a second layer."""
    tokenizer = classifier.tokenizer
    model = tiny.build(kind, vocab_size=len(tokenizer), pad_token_id=0, **options)
    clf = lrp.Classifier(model, tokenizer, kind)
    texts = lrp.load_texts(limit=3)
    audited = lrp.audit(clf, texts)
    found = audited.verdict
    assert found.answer == "cannot tell"
    assert ("post-norm" in found.table.loc["difference"].index) == (kind == "bert")
    assert audited.leads
    assert len(next(iter(audited.gains.values()))) == clf.architecture.layers
    conventions = audited.conventions.one.index
    assert ("read at the LayerNorm" in conventions) == (kind == "bert")
    assert audited.sound


class TestAnswers:
    @staticmethod
    def altered(run, **means):
        """The run with twice its texts, its r around other means."""
        again = run.rows.assign(position=run.rows.position + run.rows.position.max() + 1)
        rows = pd.concat([run.rows, again], ignore_index=True)
        noise = np.random.default_rng(0).normal(0, 0.05, len(rows))
        middle = rows.method.map({"attnlrp": 0.5, "cp-lrp": 0.5, **means}).fillna(0.3)
        return audit_plan.Audited(rows.assign(**{audit_answers.R: middle + noise}))

    def test_the_verdict_follows_the_rows(self, run):
        high = audit_answers.verdict(self.altered(run, attnlrp=0.9))
        low = audit_answers.verdict(self.altered(run, attnlrp=0.4, **{"cp-lrp": 0.6}))
        assert (high.answer, high.method, high.below) == ("yes", "attnlrp", 0)
        assert (low.answer, low.method, low.below > 0.9) == ("no", "cp-lrp", True)
        assert "AttnLRP leads CP-LRP, wherever relevance is read" in sentences.of_verdict(high)
        assert "CP-LRP leads AttnLRP, wherever relevance is read" in sentences.of_verdict(low)

    def test_few_texts_or_a_wide_interval_cannot_tell(self, run):
        high = self.altered(run, attnlrp=0.9)
        few = audit_plan.Audited(high.rows[high.rows.position < FEWEST - 1])
        assert audit_answers.verdict(few).answer == "cannot tell"
        said = sentences.of_verdict(audit_answers.verdict(few))
        assert "is open: too few texts to say how many would tell; 20 are the least." in said
        assert said.endswith("texts do not say: 20 are the least.")
        assert "texts would" not in said
        close = audit_answers.verdict(self.altered(run, attnlrp=0.74))
        assert close.answer == "cannot tell"
        told = float(re.search(r"about (\d+) texts", sentences.of_verdict(close))[1])
        assert told == pytest.approx(close.texts, rel=0.35)

    def test_a_dearer_method_is_named_where_it_is_better(self, run):
        means = {"cp-lrp": 0.45, "budgeted-loo budget=0.5": 1.0}
        high = self.altered(run, attnlrp=0.7, **means)
        leads = list(audit_answers.at_budgets(audit_answers.r_by_text(high, "word")).values())
        assert (leads[0].best, leads[0].outcome) == ("AttnLRP", "clear")
        assert (leads[-1].best, leads[-1].outcome) == ("Budgeted LOO, a half", "clear")
        assert len(leads) == 2

    def test_layers_that_raise_r_lead(self, run):
        rows = run.rows.copy()
        gain = (rows.family == "single") & (rows.layer == 2) & (rows.readout == "word")
        rows.loc[(rows.method == "attnlrp"), audit_answers.R] = 0.5
        rows.loc[gain, audit_answers.R] = 0.9
        gains = audit_answers.layers(audit_plan.Audited(rows))
        leads = pd.concat(gains)["lead"]
        assert leads["word"].to_dict() == {1: 0, 2: 1}
        assert not leads.drop("word").any()


class TestPage:
    def test_it_is_whole_and_loads_nothing(self, html):
        for tag in ("section", "table", "tr", "div", "details", "p", "dl", "main", "span", "small"):
            assert len(re.findall(rf"<{tag}[ >]", html)) == html.count(f"</{tag}>"), tag
        assert not re.search(r"<(script|link|iframe|object)|url\(|@import|https?:", html)
        for address in re.findall(r'(?:src|href)="([^"]*)', html):
            assert address.startswith(("#", "data:image/svg+xml;base64,"))
        assert all(len(alt) > 20 for alt in re.findall(r'<img[^>]* alt="([^"]*)', html))
        assert html.count('<p class="caption">') == 6
        assert re.findall("<(header|main|footer)", html) == ["header", "main", "footer"]

    def test_texts_and_names_are_escaped(self, html):
        assert html.count(">&lt;<") > 3
        assert "&lt;img src=x" in html
        assert not re.search("<script|<b>film|<img src=x", html)

    def test_the_answers_stand_in_it(self, html, run):
        text = " ".join(unescape(re.sub("<[^>]*>", "", html)).split())
        assert sentences.of_verdict(audit_answers.verdict(run)) in text
        assert sentences.of_conventions(audit_answers.sensitivity(run.maps())) in text
        for said in ("All checks passed.", "seen <img", "on the median text"):
            assert said in text

    def test_a_method_is_called_as_it_was_measured(self, classifier, run, table):
        row = run.rows[run.rows.method == "mask-gradient groups=2"].iloc[0]
        inputs = classifier.encode(pd.read_csv(table).text[row.position])
        names = {"lrp": lrp, "clf": classifier, "inputs": inputs}
        scores = eval(audit_plan.call("mask-gradient groups=2", "sum"), names)
        assert np.allclose(scores[0], row.scores, atol=1e-4)
        assert audit_plan.call("cp-lrp", "sum").endswith("\"cp-lrp\", readout='sum')")

    def test_a_failed_check_stands_at_the_top(self, classifier, table, done, html, monkeypatch):
        checks = audit_plan.gates(classifier, lrp.load_texts(table, limit=2))
        monkeypatch.setattr(audit, "gates", lambda *_: checks.assign(passed=False))
        audit.write_audit(classifier, stream_texts(table), done, SETTINGS, quiet=True)
        failed = (done / audit.PAGE).read_text(encoding="utf-8")
        assert "Do not use these numbers" in failed
        assert "comes closest to LOO" not in failed

    @pytest.mark.parametrize(
        ("answer", "ruled", "said"),
        [
            ("yes", True, "Yes: LRP tracks LOO."),
            ("no", True, "No: LRP does not track LOO."),
            ("yes", False, "Yes: a gradient map tracks LOO."),
            ("no", False, "No: no gradient map tracks LOO."),
            ("cannot tell", False, "Cannot tell whether a gradient map tracks LOO."),
        ],
    )
    def test_the_headline_is_the_answer(self, run, answer, ruled, said):
        verdict = audit_answers.verdict(run)._replace(answer=answer)
        assert sentences.headline(verdict, ruled=ruled, sound=True) == said
        assert sentences.headline(verdict, ruled=ruled, sound=False).startswith(
            "Do not use these numbers"
        )

    def test_it_reads_well(self, done, browser):
        """In either colours and at either size, as the book's own pages."""
        address = (done / audit.PAGE).resolve().as_uri()
        assert unreadable(browser, address, (WIDE, False), (PHONE, True)) == []


class TestFolder:
    def test_of_a_finished_one_the_page_is_written_again_and_a_terminal_hears_the_verdict(
        self, classifier, table, done, html, run, monkeypatch, capsys
    ):
        monkeypatch.setattr(datasets, "evaluate", None)
        (done / audit.PAGE).unlink()
        audit.write_audit(classifier, stream_texts(table), done, SETTINGS)
        again = (done / audit.PAGE).read_text(encoding="utf-8")
        assert again.partition('<h2 id="cost">')[0] == html.partition('<h2 id="cost">')[0]
        last = capsys.readouterr().err.rstrip().split("\n")[-1]
        verdict = sentences.of_verdict(audit_answers.verdict(run))
        leads = audit_answers.at_budgets(audit_answers.r_by_text(run, "word"))
        next_step = sentences.next_step(leads, "under a second", 12)
        assert next_step in again
        assert last == f"Cannot tell whether LRP tracks LOO. {verdict} {next_step}"

    def test_a_page_that_cannot_be_written_whole_leaves_the_old_one(
        self, classifier, table, done, html, monkeypatch
    ):
        old = (done / audit.PAGE).read_text(encoding="utf-8")

        def full(path, text, encoding):
            with path.open("w") as file:
                file.write(text[:5_000])
            raise OSError(errno.ENOSPC, "no room")

        monkeypatch.setattr(audit.Path, "write_text", full)
        with pytest.raises(OSError, match="is full"):
            audit.write_audit(classifier, stream_texts(table), done, SETTINGS, quiet=True)
        monkeypatch.undo()
        assert (done / audit.PAGE).read_text(encoding="utf-8") == old


def test_a_dry_run_says_it_and_writes_nothing(table, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["audit", "--dataset", str(table), "--limit", "3", "--dry-run"]) == 0
    told, said = capsys.readouterr()
    assert said == "3 of 12 texts (limit=3)\n"
    assert re.match(
        r"texts   3, \d+ tokens, .*\ntime    (under a second|about .*) on one cpu(: loo \d+%, |\n)",
        told,
    )
    assert told.endswith("\nanswer  none: 20 texts are the least that decide\n")
    assert not [*tmp_path.iterdir()]


def test_of_a_model_without_rules_gradients_are_judged_and_of_more_texts(tmp_path, capsys):
    clf = tiny.without_rules()
    for limit in (3, 4):
        given = (clf, stream_texts("reviews", limit=limit), tmp_path, SETTINGS)
        out = audit.write_audit(*given, parameters={"limit": limit}, quiet=True)
        page = out.read_text(encoding="utf-8")
        assert f"; {limit} texts of <b>reviews" in page
    assert "track" not in capsys.readouterr().err  # it was to be quiet
    assert "Do gradients track Leave-One-Out here?" in page
    assert "Integrated Gradients, 8 steps and Gradient × input need none" in page
    assert not any(name in page for name in ("AttnLRP", "CP-LRP", 'id="layers"', "read-out"))
    run = audit_plan.Audited(datasets.read(tmp_path).rows)
    r = run.rows[run.rows.method == "grad-x-input"].set_index("position")[audit_answers.R]
    assert run.names == ["grad-x-input", "ig steps=8", "loo"]
    found = audit_answers.verdict(run).table.value["Gradient × input", "word"]
    assert found == pytest.approx(r.mean(), abs=1e-6)


def test_a_choice_that_alone_turns_the_order_is_named():
    # decided by `a` where b = 0; undecided where b = 1
    index = pd.MultiIndex.from_product([[0, 1], [0, 1]], names=["a", "b"])
    sign = pd.Series([-1.0, 0, 1, 0], index)
    ends = {"low": sign - 0.5, "high": sign + 0.5}
    every = pd.DataFrame({"value": sign, **ends, "lead": sign})
    found = audit_answers.Sensitivity(every, every, ("AttnLRP", "CP-LRP"))
    said = sentences.of_conventions(found)
    assert "AttnLRP leads in 25% and CP-LRP in 25%" in said
    assert said.endswith("Reversed by one choice alone: a.")
    said = sentences.of_conventions(found._replace(every=every.iloc[:2]))
    assert "No choice alone" in said


def test_an_audit_by_words_says_so_and_counts_loo_s_passes(classifier, tmp_path):
    texts = stream_texts([f"an unwatchable film {lrp.load_texts()[k]}" for k in range(3)])
    settings = Settings(methods=(), units="word")
    out = audit.write_audit(classifier, texts, tmp_path, settings, quiet=True)
    page = out.read_text(encoding="utf-8")
    assert "removes one word at a time" in page
    assert "units=&#39;word&#39;" in page
    run = audit_plan.Audited(datasets.read(tmp_path).rows, "word")
    exact = run.rows[run.rows.method == "loo"]
    passes = audit_answers.r_by_text(run, "word").attrs["passes"]["LOO"]
    assert passes == pytest.approx(exact.content.map(sum).mean())
    assert passes < exact.tokens.mean()


@pytest.mark.filterwarnings("default")
def test_labels_that_the_model_has_not_lead_to_an_option_in_the_terminal_and_on_the_page(
    classifier, tmp_path, capsys
):
    model = str(tiny.save(classifier, tmp_path / "model"))
    data, out = tmp_path / "x.csv", tmp_path / "out"
    data.write_text("text,label\na wonderful film,good\nan awful film,bad\n")
    assert main(["audit", "--model", model, "--dataset", str(data), "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "2 of 2 labels name no class: " in told.err
    assert "{'good': 'CLASS', …}, says what a label is called in the model\n" in told.err
    assert told.out == f"{out / audit.PAGE}\n"
    page = (out / audit.PAGE).read_text(encoding="utf-8")
    assert "<code>--labels</code> says what a label is called in the model" in page
