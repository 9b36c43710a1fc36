"""The same work done by other libraries' own code, where that takes more than a call."""

import torch
from captum.attr import FeatureAblation, LLMAttribution, TextTemplateInput
from lxt.explicit import functional as rules
from lxt.explicit.rules import identity
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.proof import alone


def reader(layers: int = 1) -> Classifier:
    """Return a language model with random weights, whose words are a token each."""
    names = {f"w{number:04}": number for number in range(4915)}
    words = Tokenizer(WordLevel(names, unk_token="w0000"))
    words.pre_tokenizer = WhitespaceSplit()
    special = {"unk_token": "w0000", "pad_token": "w0001", "eos_token": "w0002"}
    config = LlamaConfig(
        vocab_size=len(names),
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        initializer_range=0.05,
        tie_word_embeddings=True,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval().requires_grad_(False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **special)
    return Classifier(model, tokenizer, f"untrained {layers}x576")


def captum_answer(classifier: Classifier, text: Inputs, units: str) -> Tensor:
    """Leave-one-out by deletion, by captum's LLMAttribution, one pass over all of the text a unit.

    Its default, token by token on a growing cache, gives wrong numbers beside transformers 5.
    """
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


def explicit_attnlrp(classifier: Classifier, inputs: Inputs) -> Tensor:
    """AttnLRP of a BERT by LXT's explicit rules: each operation computes relevance by its own rule.

    LXT (Achtibat et al., 2024) has the operations; the model is written out of them here. Its
    version for BERT, which changes gradients as this package does, does not import beside
    transformers 5.
    """
    return torch.cat([_explicit(classifier, text) for text, _ in alone(inputs)])


def _explicit(classifier: Classifier, text: Inputs) -> Tensor:
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
