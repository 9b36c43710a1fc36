"""The other sides of the bench: the same work written plainly, or done by another library.

Each takes a classifier and encoded texts and returns scores of the texts' tokens, special ones
included, text after text. Libraries are imported where they are used: they are an extra,
`pip install -e '.[bench]'`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional

from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.proof import alone

# Library → what it is wanted for.
LIBRARIES = {"captum": "leave-one-out by FeatureAblation", "lxt": "LRP by explicit rules"}


def installed(library: str) -> bool:
    """Whether the library can be imported."""
    return find_spec(library) is not None


def predicted(classifier: Classifier, text: Inputs) -> Callable[[Tensor], Tensor]:
    """The logit of the predicted class as a function of attention masks (rows, tokens)."""
    rest = {k: v for k, v in text.model_kwargs().items() if k != "attention_mask"}

    @torch.inference_mode()
    def logits(masks: Tensor) -> Tensor:
        same = {name: value.expand(len(masks), -1) for name, value in rest.items()}
        return classifier.model(**same, attention_mask=masks).logits

    target = int(logits(torch.ones_like(text.input_ids)).argmax())
    return lambda masks: logits(masks)[:, target]


def masked_loo(classifier: Classifier, inputs: Inputs) -> Tensor:
    """Leave-one-out by one masked forward pass a token."""
    found = []
    for text, _ in alone(inputs):
        f, mask = predicted(classifier, text), torch.ones_like(text.input_ids)
        whole = f(mask)
        for token in range(mask.shape[1]):
            found.append(whole - f(mask.index_fill(1, mask.new_tensor([token]), 0)))
    return torch.cat(found)


def captum_loo(classifier: Classifier, inputs: Inputs, rows: int = 1) -> Tensor:
    """Leave-one-out by captum's FeatureAblation of the attention mask, `rows` a forward pass."""
    from captum.attr import FeatureAblation

    found = []
    for text, _ in alone(inputs):
        ablation = FeatureAblation(predicted(classifier, text))
        mask = torch.ones_like(text.input_ids)
        scores = ablation.attribute(mask, baselines=0, perturbations_per_eval=rows)
        found.append(scores[0].float())
    return torch.cat(found)


def answered(classifier: Classifier, text: Inputs) -> Callable[[Tensor], Tensor]:
    """Σ log p of one text's answer as a function of attention masks (rows, tokens), 8 at a time."""
    ids, size = text.input_ids, int(text["answer_mask"].sum())
    places = torch.arange(ids.shape[1], device=ids.device)

    @torch.inference_mode()
    def f(masks: Tensor) -> Tensor:
        found = []
        for some in masks.split(8):
            same = (part.expand(len(some), -1) for part in (ids, places))
            given = dict(zip(("input_ids", "position_ids"), same, strict=True))
            logits = classifier.model(**given, attention_mask=some, use_cache=False).logits
            own = logits[:, -size - 1 : -1].log_softmax(-1)
            said = ids[:, -size:].expand(len(some), -1)[..., None]
            found.append(own.gather(2, said)[..., 0].sum(1))
        return torch.cat(found)

    return f


def masked_units(text: Inputs, units: str) -> Tensor:
    """Attention masks of one text without each of its units, (units, tokens)."""
    numbers = text.units(units).numbers
    return (numbers != torch.arange(int(numbers.max()) + 1)[:, None].to(numbers)).long()


def masked_answer(classifier: Classifier, text: Inputs, units: str) -> Tensor:
    """Leave-one-out of an answer by masked forward passes over all of the text, in batches."""
    masks = masked_units(text, units)
    f = answered(classifier, text)(torch.cat([torch.ones_like(masks[:1]), masks]))
    return f[0] - f[1:]


def halved_answer(classifier: Classifier, text: Inputs, units: str, passes: int = 64) -> Tensor:
    """A linear surrogate of random halves, as ContextCite's: least squares for its lasso."""
    masks = masked_units(text, units)
    generator = torch.Generator().manual_seed(0)
    kept = torch.rand(passes, len(masks), generator=generator) < 0.5
    gone = (~kept).to(masks) @ (1 - masks)
    f = answered(classifier, text)(1 - gone)
    design = torch.cat([kept.float(), torch.ones(passes, 1)], 1)
    return torch.linalg.lstsq(design, f.float().cpu()[:, None]).solution[:-1, 0]


def captum_answer(classifier: Classifier, text: Inputs, units: str) -> Tensor:
    """Leave-one-out by deletion, by captum's LLMAttribution, one pass over all of the text a unit.

    Its default, token by token on a growing cache, gives wrong numbers beside transformers 5.
    """
    from captum.attr import FeatureAblation, LLMAttribution, TextTemplateInput

    (source,), mask = text.sources, text.units(units).mask[0]
    begins = [source.spans[token][0] for token in mask.nonzero().flatten().tolist()]
    begins = [at - source.text[at - 1].isspace() if at else at for at in begins]
    ends = [*begins[1:], len(source.text)]
    parts = [source.text[begin:end] for begin, end in zip(begins, ends, strict=True)]
    template = source.text[: begins[0]] + "{}" * len(parts)
    given = TextTemplateInput(template, parts, baselines=[""] * len(parts))
    said = text.input_ids[0, text["answer_mask"][0].bool()]
    ablation = LLMAttribution(FeatureAblation(classifier.model), classifier.tokenizer)
    found = ablation.attribute(given, target=said, forward_in_tokens=False)
    return found.seq_attr.float().cpu()


def masked_curves(classifier: Classifier, inputs: Inputs, scores: Tensor) -> Tensor:
    """The curve of most relevant first, without its last point, by one masked pass a step."""
    found = []
    for row, (text, _) in enumerate(alone(inputs)):
        f, mask = predicted(classifier, text), torch.ones_like(text.input_ids)
        own = inputs.content_mask[row, : mask.shape[1]].nonzero()[:, 0]
        ranked = own[(-scores[row, own]).argsort(stable=True)]
        for step in range(len(own)):
            found.append(f(mask.index_fill(1, ranked[:step], 0)))
    return torch.cat(found)


def explicit_attnlrp(classifier: Classifier, inputs: Inputs) -> Tensor:
    """AttnLRP of a BERT by LXT's explicit rules: each operation computes relevance by its own rule.

    LXT (Achtibat et al., 2024) has the operations; the model is written out of them here. Its
    version for BERT, which changes gradients as this package does, does not import beside
    transformers 5.
    """
    return torch.cat([_explicit(classifier, text) for text, _ in alone(inputs)])


def _explicit(classifier: Classifier, text: Inputs) -> Tensor:
    from lxt.explicit import functional as rules
    from lxt.explicit.rules import identity

    bert, head = classifier.model.bert, classifier.model.classifier
    parts, tokens = bert.embeddings, text.input_ids.shape[1]
    heads = classifier.model.config.num_attention_heads

    def linear(module: torch.nn.Linear, x: Tensor) -> Tensor:
        return rules.linear_epsilon(x, module.weight, module.bias, 1e-8)

    def norm(module: torch.nn.LayerNorm, x: Tensor) -> Tensor:
        return rules.layer_norm(x, module.weight, module.bias, module.eps)

    def split(x: Tensor) -> Tensor:
        return x.view(1, tokens, heads, -1).transpose(1, 2)

    words = parts.word_embeddings(text.input_ids).requires_grad_()
    rest = parts.position_embeddings.weight[None, :tokens] + parts.token_type_embeddings.weight[0]
    x = norm(parts.LayerNorm, rules.add2(words, rest))
    for block in bert.encoder.layer:
        own = block.attention
        query, key, value = (
            split(linear(m, x)) for m in (own.self.query, own.self.key, own.self.value)
        )
        scores = rules.matmul(query, key.transpose(2, 3))
        weights = rules.softmax(scores, -1, temperature=query.shape[-1] ** 0.5)
        mixed = rules.matmul(weights, value)
        mixed = linear(own.output.dense, mixed.transpose(1, 2).reshape(1, tokens, -1))
        x = norm(own.output.LayerNorm, rules.add2(mixed, x))
        inner = identity(functional.gelu, linear(block.intermediate.dense, x))
        x = norm(block.output.LayerNorm, rules.add2(linear(block.output.dense, inner), x))
    logits = linear(head, identity(torch.tanh, linear(bert.pooler.dense, x[:, 0])))
    chosen = logits.amax(dim=1).sum()
    (relevance,) = torch.autograd.grad(chosen, words, chosen.detach())
    return relevance.sum(-1)[0]
