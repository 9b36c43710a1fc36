"""What is seen of a model without running it: its embeddings, its head, and what it takes.

`describe(handle)` answers for any classifier or next-token model of transformers, and names none.
What only a run tells (its layers, what its mask and its positions do) is measured, once, by
`lrputils.model.proof`; which shortcuts of exact removal give its own result, by
`lrputils.removal.packing`. A layer is one *call* of a block, so that a model whose twelve layers
are twelve calls of one block counts like any other.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from lrputils.mistakes import listed
from lrputils.model.inputs import checked_tensors


class _Holder(Protocol):
    """What keeps a model as `.model`: a `Classifier`, an `Architecture`, a pipeline."""

    @property
    def model(self) -> nn.Module:
        """The model."""


Handle: TypeAlias = nn.Module | _Holder

WITHOUT_RULES = (
    "What needs no rules works: leave_one_out, shapley_values, leave_two_out, perturbation curves, "
    "and the methods 'loo', 'shapley', 'grad-x-input' and 'ig'"
)
_NEXT_TOKEN = "LMHeadModel", "ForCausalLM"  # how the names of language models end
# How the names of other heads end → what such a model does.
_OTHER_HEADS = {
    "ForMaskedLM": "fills in masked words",
    "ForPreTraining": "is for pretraining",
    "ForTokenClassification": "labels each token",
    "ForQuestionAnswering": "marks the answer in a text",
    "ForMultipleChoice": "chooses between texts",
    "ForConditionalGeneration": "writes a text from another",
    "ForNextSentencePrediction": "tells whether a sentence follows",
}
# Wrappers around the same parameters and the same function → where they keep the module.
_WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
}


@dataclass(frozen=True)
class Architecture:
    """The parts of one model instance.

    Attributes:
        model: the whole model, with its head.
        backbone: the model under the head.
        word_embeddings: the module whose output is one vector per token before positions are added;
            of images the whole embedding module: its output less the position embeddings.
        vision: whether the tokens are image patches behind one [CLS] token.
        language_model: whether the logits `(batch, tokens, vocabulary)` are the next token's.
        causal: whether a token sees only itself and the tokens before it; the head then reads the
            last token's final state, else the first one's.
        token_types: whether the model takes `token_type_ids`.
        max_positions: the longest text that the model takes, None where it has no limit.
        modules: the model and all modules in it, by their names.
        blocks: the block that computes each layer, in order, where they were found (see
            `lrputils.model.proof.laid_out`); layers may share one.
        embedding_norm: the norm right after the embeddings' sum, None where there is none.
        summed: whether that sum can be read: what this norm takes, else what the first block does.
    """

    model: nn.Module
    backbone: nn.Module
    word_embeddings: nn.Module
    vision: bool
    language_model: bool
    causal: bool
    token_types: bool
    max_positions: int | None
    modules: Mapping[str, nn.Module] = field(compare=False, repr=False)
    blocks: tuple[nn.Module, ...] = ()
    embedding_norm: nn.Module | None = None
    summed: bool = False

    @property
    def layers(self) -> int:
        """Number of layers: calls of a block in one forward pass."""
        return len(self.blocks) or getattr(self.config, "num_hidden_layers", 0)

    @property
    def weights(self) -> list[nn.Parameter]:
        """The parameters of all modules."""
        found = (part for module in self.modules.values() for part in module._parameters.values())
        return [weight for weight in found if weight is not None]

    @property
    def config(self) -> Any:
        """The settings of the model's text part, which is all of most models."""
        return self.model.config.get_text_config()

    @property
    def head(self) -> nn.Module | None:
        """What a decoder's logits are read by from one token's final state, if it has such."""
        if self.language_model:
            return self.model.get_output_embeddings()
        return getattr(self.model, "score", None)

    @property
    def reads_end(self) -> bool:
        """Whether it is a decoder's classifier, which finds a text's end by its padding."""
        return self.causal and not self.language_model

    def head_tokens(self, mask: Tensor) -> Tensor:
        """Columns `(batch,)` of the tokens whose final states the head reads.

        Args:
            mask: `(batch, tokens)`, true at tokens and false at padding.
        """
        places = torch.arange(mask.shape[1], device=mask.device)
        if not self.causal:
            return places.new_zeros(len(mask))
        return (mask * (places + 1)).argmax(1)

    def arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments for one forward pass on `inputs`, on the model's device.

        What its `forward` does not understand is left out; a missing attention mask is
        all ones. Decoders keep no cache, and get their positions where padding stands on the left,
        since their own count would start at the padding.

        Raises:
            TypeError: inputs that are no mapping.
            ValueError: a model in training mode, inputs of the wrong kind or shape, an empty or too
                long text, or an unknown token id.
        """
        if not isinstance(inputs, Mapping):
            raise TypeError(
                "inputs are a mapping of tensors, as `clf.encode(texts)` gives them; got "
                f"{type(inputs).__name__}"
            )
        model = type(self.model).__name__
        device, *others = {weight.device for weight in self.weights}
        if others or device.type == "meta":
            raise ValueError(
                f"weights of {model} are on {listed(sorted(map(str, [device, *others])))}, where "
                "meta is a device without memory, and what a device_map left on the disk: load "
                "all onto one device, or pass a function of texts, load_classifier(function=…)"
            )
        if not getattr(self.model.config, "return_dict", True):
            raise ValueError(f"{model} returns tuples: set model.config.return_dict = True")
        for part, module in self.modules.items():
            # Quantised layers are made in training mode, which changes nothing in them.
            if module.training and not type(module).__module__.startswith("torch.ao."):
                raise ValueError(
                    f"{part and repr(part) + ' of '}{model} is in training mode, where dropout "
                    "makes every pass another one: call model.eval() first"
                )
        if self.vision:
            pixels = inputs.get("pixel_values")
            if not isinstance(pixels, Tensor) or pixels.dim() != 4:
                raise ValueError(f"{model} needs 'pixel_values' (batch, channels, height, width)")
            return {"pixel_values": pixels.to(device)}
        input_ids, mask = self._checked(inputs, device)
        arguments = {"input_ids": input_ids, "attention_mask": mask}
        if self.token_types and inputs.get("token_type_ids") is not None:
            arguments["token_type_ids"] = inputs["token_type_ids"].to(device)
        if inputs.get("position_ids") is not None:
            arguments["position_ids"] = inputs["position_ids"].to(device)
        elif not bool(mask[:, 0].all()):
            if not self.causal:
                raise ValueError(
                    f"padding stands on the left, but {model} reads its answer at the first token: "
                    "set tokenizer.padding_side = 'right'"
                )
            arguments["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)
        if self.causal:
            arguments["use_cache"] = False
        return arguments

    def _checked(self, inputs: Mapping[str, Any], device: torch.device) -> tuple[Tensor, Tensor]:
        """Ids and attention mask, padded by the model's own token.

        Some heads and positions find the text's end by it.
        """
        input_ids, mask = (part.to(device) for part in checked_tensors(inputs))
        model, limit = type(self.model).__name__, self.max_positions
        known, pad = self.config.vocab_size, getattr(self.config, "pad_token_id", None)
        if input_ids.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"input_ids are whole numbers (int64); got {input_ids.dtype}")
        low, high = int(input_ids.min()), int(input_ids.max())
        if low < 0 or high >= known:
            raise ValueError(
                f"token ids from {low} to {high}, but {model} has 0 to {known - 1}: encode with "
                "the tokenizer that belongs to the model"
            )
        longest = int(mask.sum(1).max())
        if limit is not None and longest > limit:
            raise ValueError(
                f"a text of {longest} tokens, but {model} has {limit} positions: encode "
                f"with max_length={limit}"
            )
        if pad is None and len(input_ids) > 1 and self.reads_end:
            raise ValueError(
                f"{model} finds the end of a text by its padding token and has none: set "
                "model.config.pad_token_id, or pass one text at a time"
            )
        if pad is None:
            return input_ids, mask
        last = input_ids.gather(1, self.head_tokens(mask)[:, None])
        if self.reads_end and bool((last == pad).any()):
            raise ValueError(
                f"a text ends with token {pad}, which {model} takes for padding: it would read "
                "its answer at the token before"
            )
        return torch.where(mask.bool(), input_ids, pad), mask


def describe(handle: Handle) -> Architecture:
    """Find what is seen of a model.

    Args:
        handle: the model, what keeps it as `.model` (a `Classifier`, a pipeline), or a compiled or
            data-parallel wrapper. An `Architecture` is returned as such.

    Raises:
        TypeError: no classifier or next-token model of texts, or one with an adapter; the message
            names the class and the reason.
    """
    if isinstance(handle, Architecture):
        return handle
    model = _model_of(handle)
    name = type(model).__name__
    modules = dict(model.named_modules()) if isinstance(model, nn.Module) else {}
    for path, module in modules.items():
        if type(module).__module__.startswith("peft."):
            merged = "merge it and pass the result, model = model.merge_and_unload()"
            if hasattr(model, "prompt_encoder"):
                merged = "its vectors stand among the words, and such a prompt is not covered"
            raise TypeError(f"{name} has an adapter at {path!r}: {merged}")
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"{name} is not a transformers model: pass that which it wraps, or derive its class "
            "from PreTrainedModel, with input_ids and attention_mask in forward, and .logits in "
            "what that returns; load_classifier(module, tokenizer) takes a module of torch"
        )
    _check_head(model)
    return _parts(model, modules)


def _model_of(handle: Handle) -> nn.Module:
    """The plain model behind a handle.

    What keeps its model as `.model`, a `Classifier` or a pipeline, is unwrapped, and so are
    compiled and data-parallel models, whose module inside has the same parameters and computes the
    same function.

    Raises:
        TypeError: a model's name, or a model with an adapter (PEFT); the message says what to pass.
    """
    if isinstance(handle, str | Path):
        raise TypeError(f"'{handle}' is the name of a model: pass load_classifier('{handle}')")
    place = _WRAPPERS.get(type(handle).__name__, None if isinstance(handle, nn.Module) else "model")
    inside = getattr(handle, place, None) if place else None
    return handle if inside is None else _model_of(inside)


def _is_a(model: nn.Module, *endings: str) -> bool:
    """Whether the model's class, or one from which it derives, has a name with such an ending."""
    return any(known.__name__.endswith(endings) for known in type(model).__mro__)


def _check_head(model: PreTrainedModel) -> None:
    """Refuse a model that reads neither tokens nor patches, or has no class to explain."""
    name = type(model).__name__
    if _is_a(model, "ForImageClassification") and isinstance(_patch_positions(model), Tensor):
        return
    if model.main_input_name != "input_ids":
        raise TypeError(
            f"{name} reads {model.main_input_name}, no input_ids, and is not covered; of models "
            "that read images a classifier is whose `embeddings` give a vector a patch and have "
            "`position_embeddings`"
        )
    if not _is_a(model, "ForSequenceClassification", *_NEXT_TOKEN):
        does = (does for ending, does in _OTHER_HEADS.items() if _is_a(model, ending))
        raise TypeError(
            f"{name} {next(does, 'has no head')}, and gives a text no class to explain: pass a "
            "model for sequence classification, or one of the next token; or say as a function of "
            "texts what is explained, load_classifier(function=…)"
        )
    try:
        _words(model)
    except NotImplementedError:
        raise TypeError(
            f"{name} reads characters and has no embeddings of tokens, which could be removed"
        ) from None


def _patch_positions(model: PreTrainedModel) -> Any:
    embeddings = getattr(model.base_model, "embeddings", None)
    return getattr(embeddings, "position_embeddings", None)


def _words(model: nn.Module) -> nn.Module:
    encoder = model.get_encoder() if model.config.is_encoder_decoder else model
    return encoder.get_input_embeddings()


def _parts(model: PreTrainedModel, modules: Mapping[str, nn.Module]) -> Architecture:
    config, language_model = model.config.get_text_config(), _is_a(model, *_NEXT_TOKEN)
    takes = inspect.signature(model.forward).parameters
    vision = model.main_input_name == "pixel_values"
    # Tables of positions, whose first entries no token has.
    sizes = [
        part.num_embeddings - (0 if part.padding_idx is None else part.padding_idx + 1)
        for name, part in modules.items()
        if name.endswith(("position_embeddings", "wpe")) and isinstance(part, nn.Embedding)
    ]
    stated = getattr(config, "max_position_embeddings", None)
    return Architecture(
        model=model,
        backbone=model.base_model,
        word_embeddings=model.base_model.embeddings if vision else _words(model),
        vision=vision,
        language_model=language_model,
        # Decoders' classifiers read their answer at the last token: by a layer of this name, or
        # they keep what generation needs.
        causal=language_model or hasattr(model, "score") or "past_key_values" in takes,
        token_types="token_type_ids" in takes,
        # −1 states that there is no limit.
        max_positions=min(sizes, default=None if stated == -1 else stated),
        modules=modules,
    )
