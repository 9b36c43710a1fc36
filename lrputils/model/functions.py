"""What is no model of transformers as one: a function of texts, or a module of torch.

A function, as an API, a server or a pipeline, reads words. What is masked is left out of the text
that it reads, so that removal is exact, whatever is behind it; there are no gradients and no
layers. A module reads ids and an attention mask, and returns logits; what its mask does is measured
as of any other model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch import Tensor, nn
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from lrputils.mistakes import about

_WORD = Regex(r"\s*(?:\w+(?:['’]\w+)*|[^\w\s])\s*$|\s*(?:\w+(?:['’]\w+)*|[^\w\s])")
_LEAST = 1e-12  # of a probability, whose logarithm is explained
ONLY_REMOVAL = (
    "a function of texts has no gradients and no layers: only removal explains it, as 'loo' and "
    "'shapley'"
)


class Words(PreTrainedTokenizerFast):
    """Each word is a token, with the blanks before it; words are learned as they come."""

    def __init__(self) -> None:
        self.known = {"": 0}
        backend = Tokenizer(WordLevel(self.known, unk_token=""))
        backend.pre_tokenizer = Split(_WORD, "isolated")
        super().__init__(tokenizer_object=backend, unk_token="", pad_token="")

    def __call__(self, text: Any, *more: Any, **options: Any) -> Any:
        """Tokenize texts, one a row.

        Raises:
            ValueError: pairs of texts.
        """
        if more:
            raise ValueError("a function reads one text: join the two of a pair into one")
        backend = self.backend_tokenizer
        for each in [text] if isinstance(text, str) else text:
            for word, _ in backend.pre_tokenizer.pre_tokenize_str(each):
                self.known.setdefault(word, len(self.known))
        backend.model = WordLevel(self.known, unk_token="")
        return super().__call__(text, **options)


class FunctionForSequenceClassification(PreTrainedModel):
    """Reads the words that its mask leaves by a function; logits are log-probabilities."""

    config_class = PretrainedConfig

    def __init__(
        self, function: Callable[[list[str]], Any], tokenizer: Words, labels: Sequence[str]
    ) -> None:
        config = PretrainedConfig(id2label=dict(enumerate(labels)), name_or_path=_name(function))
        config.vocab_size, config.pad_token_id = 2**31 - 1, 0
        super().__init__(config)
        self.function, self.tokenizer = function, tokenizer
        self.embed_tokens = nn.Embedding.from_pretrained(torch.zeros(1, 1))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SequenceClassifierOutput:
        """Return the logits (batch, classes) of the words that the mask leaves.

        Raises:
            ValueError: the function returns no probabilities (batch, classes).
        """
        spelled = [*self.tokenizer.known]
        texts = [
            "".join(spelled[word] for word in row[seen.bool()].tolist())
            for row, seen in zip(input_ids, attention_mask, strict=True)
        ]
        logits = _probabilities(self.function, texts, self.config.num_labels).log()
        self.embed_tokens(input_ids * 0)  # as any model, though nothing comes of it
        return SequenceClassifierOutput(logits=logits)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__).replace("/", " ")


def _probabilities(
    function: Callable[[list[str]], Any], texts: list[str], classes: int | None = None
) -> Tensor:
    """Return a function's probabilities (texts, classes), none of them zero."""
    found = torch.as_tensor(function(texts)).detach().cpu().double()
    shape, sums = tuple(found.shape), found.sum(-1) if found.dim() else found
    wanted = (len(texts), shape[-1] if classes is None and shape else classes)
    if shape != wanted or found.min() < 0 or (sums - 1).abs().max() > 1e-3:
        raise ValueError(
            f"{_name(function)} returns {shape} for {len(texts)} texts, with sums from "
            f"{float(sums.min()):.3g} to {float(sums.max()):.3g}: a function returns a probability "
            "per text and class, (texts, classes), which sum to 1"
        )
    return found.clamp(min=_LEAST).float()


def of_function(
    function: Callable[[list[str]], Any], labels: Sequence[str] | None = None
) -> tuple[PreTrainedModel, Words]:
    """Return a function as a model, and the tokenizer of its words.

    Args:
        function: a list of texts → their probabilities, (texts, classes).
        labels: of the classes; "LABEL_0", … if not given.

    Raises:
        ValueError: the function returns no probabilities, or the labels are not as many.
    """
    classes = _probabilities(function, ["a text", "another"]).shape[1]
    labels = labels or [f"LABEL_{number}" for number in range(classes)]
    if len(labels) != classes:
        raise ValueError(about("labels", labels) + f": the function has {classes} classes")
    words = Words()
    return FunctionForSequenceClassification(function, words, labels).eval(), words


class ModuleForSequenceClassification(PreTrainedModel):
    """A module of torch that returns logits (batch, classes), or has them as `.logits`."""

    config_class = PretrainedConfig

    def __init__(self, module: nn.Module, words: nn.Embedding, config: PretrainedConfig) -> None:
        super().__init__(config)
        self.module, self._words = module, [words]  # in a list: the module has it already

    def get_input_embeddings(self) -> nn.Module:
        """The module of the word embeddings."""
        return self._words[0]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SequenceClassifierOutput:
        """Return the module's logits (batch, classes)."""
        found = self.module(input_ids, attention_mask)
        return SequenceClassifierOutput(logits=getattr(found, "logits", found))


def of_module(module: nn.Module, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Return a module of torch, `module(input_ids, attention_mask)` → logits, as a model.

    Its word embeddings are the first `nn.Embedding` with a row for each of the tokenizer's tokens.

    Raises:
        TypeError: it has no such embeddings, or gives a text no logits of classes.
    """
    name, size = type(module).__name__, len(tokenizer)
    tables = (part for part in module.modules() if isinstance(part, nn.Embedding))
    words = next((table for table in tables if table.num_embeddings >= size), None)
    if words is None:
        raise TypeError(
            f"{name} is not a transformers model, and has no embeddings of {size} tokens: pass it "
            "as a function of texts, load_classifier(function=…)"
        )
    ids = torch.zeros(2, 3, dtype=torch.long, device=words.weight.device)
    try:
        with torch.inference_mode():
            logits = module(ids, torch.ones_like(ids))
            _, classes = getattr(logits, "logits", logits).shape
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise TypeError(
            f"{name} is not a transformers model, and does not run as one, module(input_ids, "
            f"attention_mask) → logits (batch, classes): {said}"
        ) from error
    config = PretrainedConfig(num_labels=classes, name_or_path=name)
    config.vocab_size, config.pad_token_id = words.num_embeddings, tokenizer.pad_token_id or 0
    return ModuleForSequenceClassification(module, words, config).train(module.training)
