"""The other sides of `lrputils bench`: the same work written plainly, or done by another library.

Each takes a classifier and encoded texts and returns scores of the texts' tokens, special ones
included, text after text. Libraries are imported where they are used: they are an extra,
`pip install -e '.[bench]'`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional

from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs

# Library → what it is wanted for.
LIBRARIES = {"captum": "leave-one-out by FeatureAblation", "lxt": "LRP by explicit rules"}


def installed(library: str) -> bool:
    """Whether the library can be imported."""
    return find_spec(library) is not None


def alone(inputs: Inputs) -> Iterator[Inputs]:
    """Each text without padding."""
    for row, length in enumerate(inputs.lengths.tolist()):
        tensors = inputs.rows(row).items()
        yield Inputs.of({k: v[:, :length] for k, v in tensors if isinstance(v, Tensor)})


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
    for text in alone(inputs):
        f, mask = predicted(classifier, text), torch.ones_like(text.input_ids)
        whole = f(mask)
        for token in range(mask.shape[1]):
            found.append(whole - f(mask.index_fill(1, mask.new_tensor([token]), 0)))
    return torch.cat(found)


def captum_loo(classifier: Classifier, inputs: Inputs, rows: int = 1) -> Tensor:
    """Leave-one-out by captum's FeatureAblation of the attention mask, `rows` a forward pass."""
    from captum.attr import FeatureAblation

    found = []
    for text in alone(inputs):
        ablation = FeatureAblation(predicted(classifier, text))
        mask = torch.ones_like(text.input_ids)
        scores = ablation.attribute(mask, baselines=0, perturbations_per_eval=rows)
        found.append(scores[0].float())
    return torch.cat(found)


def masked_curves(classifier: Classifier, inputs: Inputs, scores: Tensor) -> Tensor:
    """The curve of most relevant first, without its last point, by one masked pass a step."""
    found = []
    for row, text in enumerate(alone(inputs)):
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
    return torch.cat([_explicit(classifier, text) for text in alone(inputs)])


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
