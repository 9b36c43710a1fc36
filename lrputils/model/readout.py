"""The read-out: which number is explained, and at which tensor its relevance is read.

`read(architecture, inputs)` runs the model once and returns the explained logits `(batch,)`, still
attached to their graph, and the tensor `(batch, tokens, size)` at which relevance is read. It works
inside and outside `propagating`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from lrputils.mistakes import about, listed, whole_number
from lrputils.model.architectures import Architecture, Handle, describe
from lrputils.model.forwards import Forward, replaced, run
from lrputils.model.functions import FunctionForSequenceClassification
from lrputils.model.inputs import has_answers
from lrputils.model.proof import laid_out, measured, prove_batch, short_text, state_of

READOUTS = {
    "word": "the word embeddings (ViT: patches and [CLS]), before positions are added",
    "sum": "the sum of word, position and type embeddings",
    "post-norm": "the output of the LayerNorm after that sum",
}


# Tokens whose gradients go back at once, where a method takes many.
GRADIENT_TOKENS = 8192


class Contrast(NamedTuple):
    """One class against another: their logits' difference is explained; made by `contrast`."""

    first: int | str
    second: int | str


Target: TypeAlias = int | str | Contrast | Sequence[int | str] | Tensor | None
# What of an answer's tokens is explained, and added up; as a `target` by name, the first without.
ANSWER_OUTPUTS = "log-probability", "logit", "contrast"
NO_ANSWERS = (
    "is no language model: it gives a class or a score, and answers are not for it; a chat that it "
    "scores is one text, tokenizer.apply_chat_template(chat, tokenize=False)"
)


def contrast(first: int | str, second: int | str) -> Contrast:
    """Return a target that every method takes: the logit of `first` minus that of `second`.

    Each is a class number or a label of the model. For the runner-up of each text there is
    `output="difference"` of `leave_one_out`.

    Raises:
        ValueError: the same class twice.
    """
    if first == second:
        raise ValueError(f"contrast({first!r}, {second!r}) compares a class with itself")
    return Contrast(first, second)


def find_class(label: Any, names: Sequence[str], classes: int | None = None) -> int | None:
    """The class that a label means, None where it means none.

    A label is a name, else a name in other letter case, else, where no class is called by a number,
    a class number, also as text or as a float; there are as many `classes` as names if not given.

    Raises:
        ValueError: several classes have the name; the message lists them all.
    """
    whole = isinstance(label, float | bool | np.floating | np.bool_) and label == label // 1
    said = str(int(label) if whole else label)
    for spelled in (str, str.casefold):
        found = [number for number, name in enumerate(names) if spelled(name) == spelled(said)]
        if len(found) > 1:
            raise ValueError(
                f"{said!r} names {len(found)} of the classes {listed(names)}: rename them in "
                "model.config.id2label"
            )
        if found:
            return found[0]
    if not said.isdecimal() or any(map(str.isdecimal, names)):
        return None
    return int(said) if int(said) < (classes or len(names)) else None


def resolve_target(target: Target, logits: Tensor, model: nn.Module) -> Tensor:
    """The explained class of each row, `(batch,)`; of a contrast `(batch, 2)`.

    `target` is None (the predicted class), a class, one a row, or a contrast. Of a contrast the
    second class c stands as −1 − c. What this returns is a target too.

    Raises:
        ValueError: no such class, or of the wrong number; no target for a head that predicts none.
    """
    batch, classes = logits.shape
    labels = model.config.id2label or {}
    names = [str(name) for _, name in sorted(labels.items())]
    names = names if len(names) == classes else []  # those of a next-token model are no tokens
    if target is None:
        if classes > 1 and names and _problem(model) == "regression":
            raise ValueError(
                f"{type(model).__name__} gives {classes} scores and predicts none of them: choose "
                f"one by target=, of {listed(names)}"
            )
        return logits.detach().argmax(1)
    pair = isinstance(target, Contrast)
    if isinstance(target, Tensor) and target.dim() == 2 and bool((target < 0).any()):
        return target.to(logits.device)
    numbers = target
    if isinstance(target, Sequence):
        rows = [target] * batch if isinstance(target, str) else target
        numbers = [
            find_class(each, names, classes) if isinstance(each, str) else each for each in rows
        ]
        if None in numbers:
            stray = rows[numbers.index(None)]
            known = listed(names) or "the tokens: give its number"
            near = get_close_matches(str(stray), names, n=3)
            meant = f"; close to it: {', '.join(near)}" if near else ""
            raise ValueError(about("target", stray) + f" is none of {known}{meant}")
    try:
        chosen = torch.as_tensor(numbers, device=logits.device)
    except (TypeError, ValueError):
        chosen = logits
    if chosen.dtype.is_floating_point or chosen.dtype == torch.bool:
        raise ValueError(f"target is a class number, or one for each row; got {target!r}")
    shape = (batch, 2) if pair else (batch,)
    chosen = (chosen.expand(shape) if chosen.dim() < len(shape) else chosen).to(torch.long)
    if chosen.shape != shape:
        raise ValueError(
            f"target has shape {tuple(chosen.shape)}: pass one class, or one for each of the "
            f"{batch} rows"
        )
    outside = sorted({int(c) for c in chosen.flatten() if not 0 <= c < classes})
    if outside:
        raise ValueError(f"target {outside} out of range: the classes are 0 to {classes - 1}")
    return torch.stack([chosen[:, 0], -1 - chosen[:, 1]], dim=1) if pair else chosen


def _problem(model: nn.Module) -> str | None:
    """What the model's configuration says that its head was trained for, if it does."""
    return getattr(model.config, "problem_type", None)


class _Answers(NamedTuple):
    """The answers of a batch, each `(batch, tokens of the longest)`.

    Attributes:
        ids: of the answers' tokens.
        columns: where each is predicted: at the token before it.
        mask: false behind the end of a shorter answer.
    """

    ids: Tensor
    columns: Tensor
    mask: Tensor


def answers_in(architecture: Architecture, inputs: Mapping[str, Any]) -> _Answers | None:
    """Return the answers of encoded texts; None where they have none.

    Raises:
        ValueError: one is empty, nothing stands before it, or the model answers by a class.
    """
    if not has_answers(inputs):
        return None
    if not architecture.language_model:
        raise ValueError(f"{type(architecture.model).__name__} {NO_ANSWERS}")
    device = next(architecture.model.parameters()).device
    marked = inputs["answer_mask"].to(device)
    sizes = marked.sum(1)
    order = marked.argsort(dim=1, descending=True, stable=True)[:, : int(sizes.max())]
    mask = marked.gather(1, order).bool()
    ids = inputs["input_ids"].to(device).gather(1, order)
    if bool((sizes == 0).any()) or bool(marked[:, 0].any()):
        raise ValueError("each text of a batch with answers has one, behind a token of its own")
    return _Answers(ids, (order - 1).clamp(min=0), mask)


def resolve_output(target: Target, batch: int) -> Tensor:
    """What of the answers is explained, as numbers in `ANSWER_OUTPUTS`, `(batch,)`; a target too.

    Raises:
        ValueError: it is a class, or not the same in all rows.
    """
    if isinstance(target, Tensor) and target.shape == (batch,) and len(target.unique()) == 1:
        return target
    if target is not None and target not in ANSWER_OUTPUTS:
        raise ValueError(
            f"target={target!r} is none of {ANSWER_OUTPUTS}, which are what can be explained of an "
            "answer; classes and next tokens are explained in texts without one"
        )
    return torch.full((batch,), ANSWER_OUTPUTS.index(target or ANSWER_OUTPUTS[0]))


def score_tokens(logits: Tensor, ids: Tensor, output: str) -> Tensor:
    """What `output` says of tokens `(…)`, from the logits `(…, vocabulary)` that predict them.

    "log-probability", "logit", or "contrast", the logit less the largest of all others.
    """
    own = logits.gather(-1, ids[..., None])[..., 0]
    if output == "logit":
        return own
    if output == "log-probability":
        return own - logits.logsumexp(-1)
    return own - logits.scatter(-1, ids[..., None], -torch.inf).amax(-1)


def explained(logits: Tensor, chosen: Tensor) -> Tensor:
    """The explained number of each row, `(batch,)`, from its logits and what is chosen of them."""
    if chosen.dim() == 1:
        return logits.gather(1, chosen[:, None]).squeeze(1)
    first, second = chosen.unbind(1)
    return explained(logits, first) - explained(logits, -1 - second)


def probabilities(model: nn.Module, logits: Tensor) -> Tensor:
    """Probabilities of the classes, `(batch, classes)`: by a sigmoid each where the model says so.

    Raises:
        ValueError: logits that are scores, not classes: of a regression, or a lone one.
    """
    if _problem(model) == "multi_label_classification":
        return logits.sigmoid()
    if logits.shape[1] == 1 or _problem(model) == "regression":
        number = "one logit, a score" if logits.shape[1] == 1 else f"{logits.shape[1]} scores"
        raise ValueError(
            f"this model has {number} without a probability: explain it with output='logit'"
        )
    return logits.softmax(dim=1)


@dataclass(frozen=True)
class Reading:
    """One forward pass, ready for the backward pass.

    Attributes:
        output: what is explained, logits `(batch,)` or their contrast, or what is said of an
            answer, in the graph.
        logits: all logits `(batch, classes)`, detached; next-token logits of the last token; of
            answers `(batch, answer tokens, classes)`.
        target: the explained class of each row, `(batch,)`; of a contrast `(batch, 2)`; of
            answers see `resolve_output`.
        site: the tensor `(batch, tokens, size)` at which gradients are taken, in the graph.
        value: what they are multiplied with, `(batch, tokens, size)`, detached; not `site` itself
            only where the read-out is one summand of the tensor that the model takes (ViT).
        valid: boolean `(batch, tokens)`, False at padding, and at answers, which have no scores.
        head: boolean `(batch, tokens)`, True at the token whose final state the head reads; before
            an answer, at the prompt's last.
        read: boolean `(batch, tokens)`, all tokens that are read: of an answer one before each.
        places: `site` and `value` of every read-out that the model has, by name.
        start: what a decoder that reads the same words reads before them, in the graph.
        inputs: the states `(batch, tokens, size)` that each layer takes, in the graph.
        outputs: those that it gives.
    """

    output: Tensor
    logits: Tensor
    target: Tensor
    site: Tensor
    value: Tensor
    valid: Tensor
    head: Tensor
    read: Tensor
    places: Mapping[str, tuple[Tensor, Tensor]]
    start: Tensor | None
    inputs: list[Tensor]
    outputs: list[Tensor]

    def gradient(self) -> Tensor:
        """What flows back to the read-out tensor from the explained logits: `site`'s shape.

        Raises:
            ValueError: no gradient reaches it, or another one beside it.
        """
        gradient = None
        if self.output.requires_grad:
            (gradient,) = torch.autograd.grad(self.output.sum(), self.site, allow_unused=True)
        if gradient is None:
            raise ValueError(
                "this model passes no gradient back to its words: use what removes tokens, as "
                "leave_one_out"
            )
        return gradient

    def relevance(self, gradient: Tensor, value: Tensor | None = None) -> Tensor:
        """R = Σ value ⊙ gradient over the state's size: `(…, batch, tokens)`, 0 at padding.

        The value is the read-out's, or that of another tensor at which the gradient was taken.
        """
        value = self.value if value is None else value
        wide = torch.promote_types(gradient.dtype, torch.float32)
        return self.per_token((value.to(wide) * gradient.to(wide)).sum(-1))

    def per_token(self, scores: Tensor) -> Tensor:
        """Scores `(batch, tokens)` out of the graph, with exactly 0 where `valid` is false."""
        return torch.where(self.valid, scores, 0.0).detach()


def read(
    architecture: Architecture,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    readout: str = "word",
    change: Callable[[Tensor], Tensor] | None = None,
) -> Reading:
    """Run the model once on `inputs` and keep the read-out tensor.

    `target`: the class to explain, by number or label, one for all rows or one a row, or a
    `contrast` of two; None is the class that this pass predicts. `readout`: one of `READOUTS`.
    `change`: replaces the word embeddings `(batch, tokens, size)` by what it returns.

    Raises:
        ValueError: unknown read-out or one that the model lacks, a target out of range, a model in
            training mode, wrong inputs, or logits that are not finite.
    """
    model = architecture.model
    if readout != "word":
        known = readouts(architecture)
        if readout not in known:
            raise ValueError(
                f"{type(model).__name__} has no read-out {readout!r}: use one of {known}"
            )
        architecture = laid_out(architecture)
    if any(weight.is_inference() for weight in architecture.weights):
        raise ValueError(
            f"{type(model).__name__} was made under torch.inference_mode, and no gradient passes "
            "it: load it outside of that, or use what removes tokens, as the method 'loo'"
        )
    arguments = architecture.arguments(inputs)
    answers = answers_in(architecture, inputs)
    prove_batch(architecture, arguments)
    forwards, places, taken, given = _catching(architecture, change)
    with replaced(forwards), torch.enable_grad():
        logits = run(architecture, arguments, answers and answers.columns)
        if answers is None:
            chosen = resolve_target(target, logits, model)
            output = explained(logits, chosen)
        else:
            chosen = resolve_output(target, len(logits))
            said = score_tokens(logits, answers.ids, ANSWER_OUTPUTS[int(chosen[0])])
            output = (said * answers.mask).sum(1)
    start = places.pop("start", (None,))[0]
    site, value = places[readout]
    own = arguments.get("input_ids", site[..., 0]).shape
    if site.shape[:2] != own:
        raise ValueError(
            f"{type(model).__name__} embeds words as {tuple(site.shape[:2])} where texts are "
            f"{tuple(own)}, (batch, tokens): use what removes tokens, as the method 'loo'"
        )
    valid = arguments.get("attention_mask", torch.ones(site.shape[:2], device=site.device)).bool()
    marked = inputs.get("answer_mask", torch.zeros(1)).bool().to(valid.device)
    valid = valid & ~marked
    head = one_hot(architecture.head_tokens(valid), valid.shape[1]).bool()
    reads = head if answers is None else marked.roll(-1, 1)
    return Reading(
        output=output,
        logits=logits.detach(),
        target=chosen,
        site=site,
        value=value,
        valid=valid,
        head=head,
        read=reads,
        places=places,
        start=start,
        inputs=taken,
        outputs=given,
    )


def readouts(model: Handle) -> list[str]:
    """Return the read-outs of `READOUTS` that a model has: "post-norm" needs that LayerNorm.

    It is measured, once, on a short text: all of the gradient that reaches the words has to pass
    the tensor, each token's at its own place.
    """
    architecture = describe(model)
    decodes = architecture.config.is_encoder_decoder  # and reads its words once more
    if decodes or isinstance(architecture.model, FunctionForSequenceClassification):
        return ["word"]
    architecture = laid_out(architecture)
    state = "read-outs", state_of(architecture)
    return measured(architecture.model, state, partial(_measured_readouts, architecture))


@torch.inference_mode(False)
def _measured_readouts(architecture: Architecture) -> list[str]:
    with suppress(RuntimeError, ValueError):
        reading = read(architecture, short_text(architecture))
        derivative = partial(torch.autograd.grad, retain_graph=True)
        words, passed = reading.site, ["word"]
        (direct,) = derivative(reading.output, words)
        token = words.shape[1] // 2
        for name, (site, _) in reading.places.items() if architecture.summed else ():
            if name == "word" or site.shape[:2] != words.shape[:2]:
                continue
            (through,) = derivative(site, words, derivative(reading.output, site))
            entries = torch.arange(1.0, 1 + site.shape[-1]).to(site)
            (of_token,) = derivative(site[:, token] @ entries, words)
            alone = of_token.any(-1)[0].nonzero().flatten().tolist() == [token]
            if alone and torch.allclose(through, direct):
                passed.append(name)
        return passed
    return ["word"]


def pulled_back(output: Tensor, source: Tensor, gradients: Tensor, batch_tokens: int) -> Tensor:
    """Vector-Jacobian products of one map, for gradients `(n, *output.shape)` at its output.

    From `output`, `(batch, tokens, …)`, in the graph, which is kept, to the `source` that it was
    computed from, or `output` itself: `(n, *source.shape)`. So many tokens' gradients go back at
    once.

    Raises:
        ValueError: a bound below one token.
    """
    whole_number("batch_tokens", batch_tokens)
    if output is source:
        return gradients
    rows = max(1, batch_tokens // output.shape[:2].numel())
    parts = [
        torch.autograd.grad(output, source, part, retain_graph=True, is_grads_batched=True)[0]
        for part in gradients.split(rows)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _catching(
    architecture: Architecture, change: Callable[[Tensor], Tensor] | None
) -> tuple[dict[nn.Module, Forward], dict, list[Tensor], list[Tensor]]:
    """Forward passes that catch the read-outs, and what the blocks take and give; and what they do.

    Of a read-out: where gradients are taken, and what they are multiplied with, out of the graph.
    """
    places: dict[str, tuple[Tensor, Tensor]] = {}
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    read: list[Tensor] = []

    def _embeddings(inner: Forward, ids: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        output = inner(ids, *args, **kwargs)
        if "word" in places:
            return _again(ids, output)
        words = architecture.word_embeddings
        if not isinstance(output, Tensor):
            raise ValueError(
                f"the word embeddings of {type(architecture.model).__name__} are more than a "
                "tensor: use what removes tokens, as the method 'loo'"
            )
        positions = words.position_embeddings if architecture.vision else 0.0
        word = (output - positions).detach()
        if change is not None:
            word = change(word)
            output = word + positions
        places["word"] = output.detach().requires_grad_(), word.detach()
        read.append(ids)
        return places["word"][0].clone()  # some models scale their words in place

    def _again(ids: Tensor, output: Tensor) -> Tensor:
        """The same words for a decoder, one later; GPT-2 looks token types up in the same table."""
        first, site = read[0], places["word"][0]
        if not architecture.config.is_encoder_decoder or ids.shape != first.shape:
            return output
        if torch.equal(ids, first):
            return site.clone()
        if not torch.equal(ids[:, 1:], first[:, :-1]):
            raise ValueError(
                f"{type(architecture.model).__name__} reads other words in its decoder: use what "
                "removes tokens, as the method 'loo'"
            )
        places["start"] = output[:, :1].detach().requires_grad_(), output[:, :1].detach()
        return torch.cat([places["start"][0], site[:, :-1]], dim=1)

    def _norm(inner: Forward, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        output = inner(x, *args, **kwargs)
        places.update({"sum": (x, x.detach()), "post-norm": (output, output.detach())})
        return output

    def _block(inner: Forward, *args: Any, **kwargs: Any) -> Any:
        given = (x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
        hidden = next(x for x in given if x.is_floating_point())
        # Without a norm nothing stands between the sum and the first block.
        places.setdefault("sum", (hidden, hidden.detach()))
        inputs.append(hidden)
        output = inner(*args, **kwargs)
        outputs.append(output[0] if isinstance(output, tuple) else output)
        return output

    tables = [architecture.word_embeddings]
    if architecture.config.is_encoder_decoder:
        shared = (m for m in architecture.model.modules() if isinstance(m, nn.Embedding))
        tables += [m for m in shared if m.weight is tables[0].weight and m is not tables[0]]
    forwards: dict[nn.Module, Forward] = dict.fromkeys(tables, _embeddings)
    forwards |= dict.fromkeys(architecture.blocks, _block)
    if architecture.embedding_norm is not None:
        forwards[architecture.embedding_norm] = _norm
    return forwards, places, inputs, outputs
