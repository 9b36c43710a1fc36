"""`explain`: one text, its heat map under some methods, and how far each map tracks exact LOO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lrputils import stats
from lrputils.attribution import METHODS, attribute
from lrputils.attribution.methods import completeness_gap
from lrputils.data.given import OWN, Text, is_text
from lrputils.mistakes import about
from lrputils.model.chats import Chat, generation_settings, is_chat
from lrputils.model.classifier import Classifier, load_classifier
from lrputils.model.inputs import Inputs
from lrputils.model.readout import Target
from lrputils.model.units import Span, Word, check_units, narrowed
from lrputils.progress import bar
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.removal.shapley import shapley_values
from lrputils.report.heatmap import Heatmap, Heatmaps, named

DEFAULT = "loo", "attnlrp"
_CHEAP = 128  # in a text of at most so many tokens LOO is computed for the notes, asked for or not
_SHUFFLES = 1000
_GRADIENTS = "grad-x-input", "ig"
_ROUNDING = 1e-4  # of LOO's size: a gradient's map that is smaller is no more than rounding
_FIRST, _SHARE = 3, 0.1  # times LOO's share of the first token, and a share, that are worth a word
NARROWED = "sentence,word"  # units: sentences first, then the words of those that count
_YARDSTICK = (
    "The yardstick: each {unit} is removed by itself, exactly. It does not see what only several "
    "{unit}s do together."
)


def explain(
    classifier: Classifier | str | Path | None,
    text: Text | Chat | list[Text | Chat],
    methods: str | Sequence[str] = DEFAULT,
    *,
    target: Target = None,
    units: str | Sequence[Span] = "token",
    max_length: int | None = None,
    answer: str | None = None,
    removal: str = "attention-mask",
) -> Heatmap | Heatmaps:
    """Explain what a classifier makes of one text, or a language model says to it; or of several.

    Under each map stands a sentence on how far it agrees with LOO on this text: Pearson's r over
    the tokens that are not special, what size of r the map's own scores reach in one of twenty
    random orders, and whether the two name the same word first. All of it is about this text alone.

    Args:
        classifier: a `Classifier`, what `load_classifier` takes (a folder, a name on the hub), or
            None for the book's own model.
        text: one text, a pair of texts `(first, second)` for a model that reads two, or a chat for
            a language model, `[{"role": "user", "content": …}]`; or a list of such texts, each
            explained by itself.
        methods: names or labels from `METHODS`, also as "loo,attnlrp" and with options
            ("mask-gradient:groups=2"); their maps are stacked in this order.
        target: the class to explain, by number or label, or a `lrputils.contrast` of two; a
            next-token model's by the token's id. None is the predicted one. Of an answer its
            "log-probability" (the default), "logit" or "contrast" (see `leave_one_out`).
        units: what is removed and scored: each "token", "word", "sentence" or "message", or spans
            of the text as `[(0, 6), (12, 20)]`, in characters. LOO removes a unit at once; other
            maps are summed over it. "sentence,word", for long texts: the words of the three
            sentences that LOO puts first, and the others whole.
        max_length: explain the first tokens alone, so many with special ones. Without it a text
            that is too long is refused.
        answer: what a language model says, if that is to be explained. "own", and of a chat the
            default, is the model's own: its most probable token each time, 64 of them at most.
        removal: what LOO does to a token (see `leave_one_out`).

    Returns:
        The `Heatmap`: a notebook shows it, a prompt prints it, `save` writes it, `to_frame` holds
        its numbers. Of a list all of them, as `Heatmaps`.

    Raises:
        TypeError: `text` is no string, pair of strings or list, or the model is not covered.
        ValueError: an unknown method, option or class, or a text that is empty or too long.
        OSError: no such model.
    """
    listed = methods.split(",") if isinstance(methods, str) else methods
    ways = {}  # label → method and its options
    for text_of in listed:
        found, given = METHODS.setting(text_of)
        label = ", ".join([found.label, *(f"{name}={value}" for name, value in given.items())])
        if "removal" in found.options:
            given = {"removal": removal, **given}
        ways[label] = found.name, given
    if not ways:
        raise ValueError(f"no method is named; there are {', '.join(sorted(METHODS))}")
    several = isinstance(text, list) and len(text) > 0 and not is_chat(text)
    texts: Sequence[Any] = text if isinstance(text, list) and several else [text]
    if not all(is_text(one) or is_chat(one) for one in texts):
        kind = type(text).__name__
        raise TypeError(
            "text is one string, a pair (first, second), a chat of messages with role and content, "
            f"or a list of them; got {kind}"
        )
    if not isinstance(classifier, Classifier):
        classifier = load_classifier(classifier)
    shown = Heatmaps(
        _explain(classifier, one, ways, target, units, removal, max_length, answer) for one in texts
    )
    return shown if several else shown[0]


def _explain(
    classifier: Classifier,
    text: Any,
    ways: Mapping[str, tuple[str, Mapping[str, Any]]],
    target: Target,
    units: str | Sequence[Span],
    removal: str,
    max_length: int | None,
    answer: str | None,
) -> Heatmap:
    """`explain` of one text, its arguments checked."""
    replies, cut = answer == OWN or (is_chat(text) and answer is None), False
    if replies:
        answer, cut = classifier.reply(text)
    inputs = classifier.encode([text], max_length, truncate=True, answer=answer)
    if inputs.truncated and max_length is None:
        size = len(inputs.tokens[0])
        raise ValueError(
            f"the text is longer than the {size} tokens that are read at once: "
            + about("max_length", size)
            + " explains its beginning"
        )
    if isinstance(units, str) and units == NARROWED:
        first = leave_one_out(classifier, inputs, target=target, units="sentence", removal=removal)
        units = narrowed(inputs.sources[0], first[0].tolist())
    spans = check_units(units if isinstance(units, str) else [units])
    unit = spans if isinstance(spans, str) else "span"
    common: dict[str, Any] = {"target": target, "units": spans}
    maps: dict[str, np.ndarray] = {}
    doubts = dict.fromkeys(ways, "")
    token_maps: Sequence[np.ndarray] = ()  # LOO of each token of an answer
    counted = bar(True, iterable=ways.items(), unit="method", mininterval=0, leave=False)
    loo = None
    for label, (name, options) in counted:
        counted.set_description(label)
        asked = {**common, **options}
        if name == "loo" and answer is not None:
            exact = leave_one_out(classifier, inputs, per_token=True, **asked)
            token_maps = exact[0].cpu().numpy()
            maps[label] = np.sum(token_maps, 0)
        else:
            maps[label], doubts[label] = _map(classifier, inputs, name, asked)
        loo = maps[label] if name == "loo" else loo
    shown = Heatmap.of(
        classifier,
        text,
        maps,
        target=target,
        units=spans,
        max_length=max_length,
        answer=answer,
    )
    if len(token_maps):
        answered = inputs["answer_mask"][0].tolist()
        tokens = [t for t, inside in zip(inputs.tokens[0], answered, strict=True) if inside]
        for token, scores in zip(tokens, token_maps, strict=False):
            shown.of_answer.append(Heatmap(shown.tokens, {token: scores}, words=shown.words))
            shown.of_answer[-1].special = shown.special
    if replies:
        end = ", cut where it grew long" if cut else ""
        settings = generation_settings(classifier.model)
        under = f", under its generation_config's {settings}" if settings else ""
        origin = f"The answer is the model's own, its most probable token each time{under}{end}."
        shown.remark = f"{origin} {shown.remark}".strip()
    if loo is None and len(inputs.tokens[0]) <= _CHEAP:
        exact = leave_one_out(classifier, inputs, **common, removal=removal)
        loo = exact[0].cpu().numpy()
    content = inputs.units(spans).mask[0].cpu().numpy()
    for label, scores in maps.items():
        name, note = ways[label][0], _YARDSTICK.format(unit=unit)
        if name != "loo":
            note = tracking(scores, loo, content, shown.words, unit)
            if loo is not None and unit == "token":
                note += _first_token(scores, loo)
            if loo is not None and name in _GRADIENTS and _is_rounding(scores, loo):
                note, doubts[label] = _of_rounding(scores, loo), ""
        shown.notes[label] = note + doubts[label]
    return shown


def _map(
    classifier: Classifier, inputs: Inputs, name: str, options: Mapping[str, Any]
) -> tuple[np.ndarray, str]:
    """Return a method's map of a text, (tokens,), and a sentence on its errors; "" if none."""
    if name == "shapley":
        sampled = shapley_values(classifier, inputs, **options)
        error = float(sampled.errors.max())
        doubt = f" Its values are sampled, with standard errors up to {error:.2g}." if error else ""
        return sampled.scores[0].cpu().numpy(), doubt
    scores = attribute(classifier, inputs, name, **options)
    one, doubt = scores[0].cpu().numpy(), ""
    if name == "ig" and options["units"] == "token":
        start = {key: options[key] for key in ("target", "baseline") if key in options}
        gap = float(completeness_gap(classifier, inputs, scores, **start)[0])
        doubt = _of_gap(float(one.sum()), gap)
    return one, doubt


def _of_gap(total: float, gap: float) -> str:
    """Say what scores that sum to `total` miss of the change they explain; "" if it is little."""
    if abs(gap) <= 0.05 * abs(total + gap):
        return ""
    return (
        f" Its scores sum to {total:+.2f}, and from its baseline to the text the output changes by "
        f"{total + gap:+.2f}: more steps close the gap."
    ).replace("-", "−")


def _is_rounding(scores: np.ndarray, loo: np.ndarray) -> bool:
    return 0 < np.abs(scores).max() < _ROUNDING * np.abs(loo).max()


def _of_rounding(scores: np.ndarray, loo: np.ndarray) -> str:
    largest, exact = np.abs(scores).max(), np.abs(loo).max()
    return (
        f"Its scores are rounding: the largest is {largest:.0e} where LOO reaches {exact:.2g}. A "
        "norm on the word embeddings takes out their size, and with it what their gradient says: "
        "read this map after the norm (readout='post-norm'), or begin from another baseline."
    ).replace("e-", "e−")


def _first_token(scores: np.ndarray, loo: np.ndarray) -> str:
    """Say where a map puts far more into the first token than leave-one-out; "" if it does not."""
    ours, exact = (abs(some[0]) / max(abs(some).sum(), 1e-30) for some in (scores, loo))
    if ours <= max(_FIRST * exact, _SHARE):
        return ""
    return f" The first token has {ours:.0%} of the map's size, and {exact:.0%} of LOO's."


def tracking(
    scores: np.ndarray,
    loo: np.ndarray | None,
    content: np.ndarray,
    words: Sequence[Word],
    unit: str = "token",
) -> str:
    """Say in a sentence or two how far a map agrees with LOO on a text.

    Args:
        scores: the map, `(tokens,)`.
        loo: exact LOO of the same class, `(tokens,)`; None if it was not computed.
        content: boolean `(tokens,)`, False at special tokens, and where no unit begins.
        words: how the tokens join.
        unit: what each score stands for.
    """
    if loo is None:
        return (
            f"How far it agrees with LOO was not measured: above {_CHEAP} tokens LOO has to be "
            "asked for."
        )
    tokens = int(content.sum())
    r = float(stats.pearson(scores, loo, where=content)[0])
    if np.isnan(r):
        few = f"{tokens} {unit}{'s' * (tokens > 1)}"
        return f"It cannot be compared with LOO: {few}, or the same score everywhere."
    orders = np.tile(scores[content], (_SHUFFLES, 1))
    orders = np.random.default_rng(0).permuted(orders, axis=1)
    by_chance = stats.pearson(orders, np.tile(loo[content], (_SHUFFLES, 1)))
    chance = float(np.quantile(np.abs(by_chance), 0.95))  # of one order in twenty
    verdict = "On this text it cannot be told from chance whether it agrees with LOO"
    if abs(r) - chance > 0.005:  # more than what the two decimals below can show
        verdict = "Agrees with LOO on this text" if r > 0 else "Runs against LOO on this text"
    value = f"{r:.2f}".replace("-", "−")
    measured = f"r = {value} over {tokens} {unit}s; shuffled, its scores reach {chance:.2f}"
    there = [place for place, word in enumerate(words) if content[list(word.pieces)].any()]
    ours, exact = (
        max(there, key=lambda place: abs(some[list(words[place].pieces)].sum()))
        for some in (scores, loo)
    )
    first = f"Both put {named(words, exact)} first."
    if ours != exact:
        first = f"It puts {named(words, ours)} first, LOO {named(words, exact)}."
    return f"{verdict}: {measured} one time in twenty. {first}"
