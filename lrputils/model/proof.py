"""What is measured of a model before its answers to changed texts are believed.

It is seen that a model takes ids and an attention mask (`lrputils.model.architectures`), and no
more. So it is measured where its layers are, that the mask hides, that positions do not move with
it, that an empty text is empty, that texts can share a batch, and that the same text gives the same
answer later. It takes some twenty passes of one short text, once a model, and again of longer texts
where the model's operations are others there, or its tokens see a window of the text alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lrputils.model.architectures import Architecture, Handle, describe
from lrputils.model.attention import in_steps
from lrputils.model.forwards import own_forward, replaced, run
from lrputils.model.functions import ONLY_REMOVAL, FunctionForSequenceClassification
from lrputils.model.inputs import Inputs, checked_tensors, padded, to_the_left
from lrputils.model.kinds import KINDS

# The name of what is known for good of a model that is another one after it was run.
_CHANGES = "changes"
# Tokens of the text on which a model is measured; longer ones are looked at.
_SHORT = 32
# One text by the names of the model's arguments, (tokens,) each.
_Row = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Facts:
    """What was measured of a model.

    Attributes:
        together: whether a text beside a longer one, padded, gives what it gives alone.
        start: the first token's position, where the model takes positions and counts from there;
            None where they are left to the model. The token of the number before takes no position.
        reads: why masking does not remove, as "reads what its attention mask hides"; empty where
            it does.
        empty: whether a text that is masked altogether gives the same whatever its words were.
        ids: the text on which it was measured, (tokens,); None where nothing was.
    """

    together: bool = True
    start: int | None = None
    reads: str = ""
    empty: bool = True
    ids: np.ndarray | None = None


# What was measured of each model, by the state in which it was.
_facts: WeakKeyDictionary[nn.Module, dict[Hashable, Any]] = WeakKeyDictionary()

_Fact = TypeVar("_Fact")


def measured(model: nn.Module, state: Hashable, measure: Callable[[], _Fact]) -> _Fact:
    """Return what `measure` finds in a model, found once as long as its state is the same."""
    facts = _facts.setdefault(model, {})
    if state not in facts:
        facts[state] = measure()
    return facts[state]


def state_of(architecture: Architecture) -> Hashable:
    """What a user may change of a model between two calls, so that it is measured anew."""
    weight = next(architecture.model.parameters())
    parts = tuple(
        (id(part), id(own_forward(part)), len(part._forward_hooks) + len(part._forward_pre_hooks))
        for part in architecture.modules.values()
    )
    return weight.dtype, weight.device, repr(vars(architecture.config)), parts


@torch.no_grad()
def prove(architecture: Architecture, ids: np.ndarray) -> Facts:
    """Measure the model, on a text of this one's words `(tokens,)`, if that was not done before.

    Raises:
        ValueError: the model does not run on its own, or the same text gives other logits when it
            comes again.
    """
    model = architecture.model
    if architecture.vision or isinstance(model, FunctionForSequenceClassification):
        return Facts()  # what a function reads is written here, and images have no mask
    if said := _facts.get(model, {}).get(_CHANGES):
        raise ValueError(said)
    most = architecture.max_positions or len(ids) + _SHORT
    short, size = min(_SHORT, most), min(1 << (len(ids) - 1).bit_length(), most)
    state = state_of(architecture)

    def _seen(size: int) -> _Seen:
        looked_at = partial(_look, architecture, ids, size)
        return measured(model, ("seen", size, state), looked_at)

    if size > short and not _seen(size).as_in(_seen(short)):
        short = size
    return measured(
        model, ("facts", short, state), lambda: _Measurement(architecture, ids, short).facts()
    )


def prove_batch(architecture: Architecture, inputs: Mapping[str, Any]) -> Facts:
    """`prove` on the longest text of a batch.

    Raises:
        ValueError: what `Architecture.arguments` refuses, too.
    """
    arguments = architecture.arguments(inputs)
    if architecture.vision:
        return Facts()
    ids, mask = (part.cpu().numpy() for part in checked_tensors(arguments))
    longest = mask.sum(1).argmax()
    return prove(architecture, ids[longest][mask[longest] > 0])


def count(ids: np.ndarray, start: int) -> np.ndarray:
    """Positions (…, tokens) of ids, from `start`; the token of the number before takes none."""
    counted = ids != start - 1
    return counted.cumsum(-1) * counted + start - 1


def alone(inputs: Mapping[str, Any]) -> list[tuple[Inputs, Tensor]]:
    """Each text of a batch as a batch of its own without padding, and where it stood, (tokens,)."""
    whole = Inputs.of(to_the_left(inputs))
    return [(whole.rows([n]), own) for n, own in enumerate(checked_tensors(inputs)[1].bool())]


def run_batch(architecture: Architecture, inputs: Mapping[str, Any]) -> Tensor:
    """Logits (batch, classes) of encoded texts, each by itself where they cannot share a batch."""
    together = prove_batch(architecture, inputs).together
    batches = [inputs] if together else [one for one, _ in alone(inputs)]
    return torch.cat([run(architecture, architecture.arguments(batch)) for batch in batches])


def ends(architecture: Architecture) -> np.ndarray:
    """The tokens by which the model may find a text's end, as numbers."""
    end = getattr(architecture.config, "eos_token_id", None)
    return np.atleast_1d(np.array([] if end is None else end))


class _Seen(TorchFunctionMode):
    """What is seen of one pass.

    Attributes:
        names: of its operations, in their order.
        whole: whether each token attends to all tokens, or to all before it and itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.whole = True

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        output = function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        self.names.append(name)
        kind, seen = KINDS.get(name), None
        if kind == "softmax" and output.dim() > 2:
            seen = output > 0
        elif kind == "attention":
            seen = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
        if seen is not None:
            counts = (seen if seen.dtype == torch.bool else seen > -1e3).sum(-1)
            before = torch.arange(1, 1 + counts.shape[-1], device=counts.device)
            self.whole &= bool((counts == seen.shape[-1]).all() or (counts == before).all())
        return output

    def as_in(self, other: _Seen) -> bool:
        """Whether what is measured of the other pass holds for this one."""
        return self.whole and self.names == other.names


def _look(architecture: Architecture, ids: np.ndarray, size: int) -> _Seen:
    of_size = _Measurement(architecture, ids, size)
    with _Seen() as seen:
        of_size.run(of_size._row(of_size.ids))
    return seen


class _Measurement:
    """The passes of a proof, on a text that is made of the words of a given one."""

    def __init__(self, architecture: Architecture, ids: np.ndarray, size: int):
        self.architecture = architecture
        self.name = type(architecture.model).__name__
        inner = ids[1:-1][~np.isin(ids[1:-1], ends(architecture))]
        inner = inner if len(inner) else ids[:1]
        self.ids = np.concatenate([ids[:1], np.resize(inner, max(1, size - 2)), ids[-1:]])
        self.short = np.delete(self.ids, np.arange(1, 1 + len(self.ids) // 8))
        # Every second word goes.
        self.gone = np.arange(1, len(self.ids) - 1, 2)
        self.start: int | None = None

    def _row(self, ids: np.ndarray, hidden: Sequence[int] = (), start: int | None = None) -> _Row:
        mask = np.ones_like(ids)
        mask[np.asarray(hidden, int)] = 0
        fields = {"input_ids": ids, "attention_mask": mask}
        if self.architecture.token_types:
            fields["token_type_ids"] = np.zeros_like(ids)
        start = self.start if start is None else start
        return fields if start is None else fields | {"position_ids": count(ids, start)}

    def run(self, *rows: _Row) -> Tensor:
        """Logits (rows, classes)."""
        device = next(self.architecture.model.parameters()).device
        fields = {name: [row[name] for row in rows] for name in rows[0]}
        tensors = padded(fields, getattr(self.architecture.config, "pad_token_id", None) or 0)
        arguments: dict[str, Any] = {name: value.to(device) for name, value in tensors.items()}
        if self.architecture.causal:
            arguments["use_cache"] = False
        last = torch.tensor([len(row["input_ids"]) - 1 for row in rows], device=device)
        try:
            return run(self.architecture, arguments, last)
        except (RuntimeError, TypeError, IndexError, AttributeError, KeyError) as error:
            said = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(
                f"{self.name} does not run on {len(rows)} plain text(s) of ids and an attention "
                f"mask: {said}"
            ) from error

    def facts(self) -> Facts:
        model, ids = self.architecture.model, self.ids
        modules = [*model.modules()]
        before, whole = self.run(self._row(self.short)), self.run(self._row(ids))
        without = self.run(self._row(np.delete(ids, self.gone)))
        self.allowed = 1e-3 * (whole - without).abs().max()
        self.allowed += (
            10
            * torch.finfo(next(model.parameters()).dtype).eps
            * max(1.0, float(whole.abs().max()))
        )
        if [*model.modules()] != modules or not self._same(before, self.run(self._row(self.short))):
            said = (
                f"{self.name} changes when it runs: after a text of {len(ids)} tokens a shorter "
                "one does not give the logits of before, so that nothing can be compared. Pass "
                "shorter texts, or load it anew with a configuration that does not depend on "
                "earlier texts, as attention_type='original_full' or rope_type='default'"
            )
            raise ValueError(measured(model, _CHANGES, lambda: said))
        self.start = self._counted(whole)
        reads = self._reads(without)
        # Under the mask a query may see less than usual, as that of the head's own token.
        together = self._shares() and (bool(reads) or self._shares([0, len(self.short) - 1]))
        empty = not reads and self._is_empty(together)
        return Facts(together, self.start, reads, empty, ids)

    def _same(self, one: Tensor, other: Tensor) -> bool:
        """Whether logits differ by less than a thousandth of what removing half of a text does."""
        return bool((one - other).abs().max() <= self.allowed)

    def _counted(self, whole: Tensor) -> int | None:
        """The position of the first token, found by trying."""
        model = self.architecture.model
        pad = getattr(self.architecture.config, "pad_token_id", None)
        if "position_ids" not in inspect.signature(model.forward).parameters:
            return None
        without = getattr(self.architecture.word_embeddings, "padding_idx", None)
        for start in dict.fromkeys((0, (pad or 0) + 1, (without or 0) + 1)):
            with suppress(ValueError):
                if self._same(whole, self.run(self._row(self.ids, start=start))):
                    return start
        return None

    def _shares(self, hidden: Sequence[int] = ()) -> bool:
        """Whether a text with such places hidden is the same beside a longer one, and the other."""
        pad = getattr(self.architecture.config, "pad_token_id", None)
        if self.architecture.reads_end and pad is None:
            return False  # it finds the end of a text by its padding
        rows = self._row(self.ids), self._row(self.short, hidden)
        with suppress(ValueError):  # NaN
            return self._same(self.run(*rows), torch.cat([*map(self.run, rows)]))
        return False

    def _reads(self, without: Tensor) -> str:
        if self.architecture.config.is_encoder_decoder:  # a decoder has no part of the mask
            return "reads what its attention mask hides"
        with _Seen() as seen:
            first, second = self._hidden(self.gone)
        if not self._same(first, second):
            return "reads what its attention mask hides"
        # To a model without positions too a hidden token is as none.
        moved = self._same(first, without) and "cumsum" in seen.names
        return "counts positions by its attention mask" if moved else ""

    def _is_empty(self, together: bool) -> bool:
        with suppress(ValueError):  # NaN
            same = self._same(*self._hidden(np.arange(len(self.ids))))
            return same and (not together or self._shares(range(len(self.short))))
        return False

    def _hidden(self, places: np.ndarray) -> list[Tensor]:
        """Logits of the text with places hidden, under either of two words at every second one."""
        middle, found = self.architecture.config.vocab_size // 2, []
        for word in (middle, middle + 1):  # special tokens stand at either end
            ids = self.ids.copy()
            ids[self.gone] = word
            found.append(self.run(self._row(ids, places)))
        return found


def short_text(architecture: Architecture) -> dict[str, Tensor]:
    """Inputs of one short text, or image: what is measured of a model on them holds for others."""
    config, generator = architecture.config, torch.Generator().manual_seed(0)
    weight = next(architecture.model.parameters())
    if architecture.vision:
        size = config.image_size
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        pixels = torch.randn((1, config.num_channels, height, width), generator=generator)
        return {"pixel_values": pixels.to(weight)}
    tokens = min(8, architecture.max_positions or 8)
    ids = torch.randint(config.vocab_size, (1, tokens), generator=generator)
    ends = [getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos")]
    # A token that means something would be read otherwise.
    meant = torch.tensor([end for end in ends if isinstance(end, int)], dtype=torch.long)
    ids[torch.isin(ids, meant)] = config.vocab_size // 2
    words = getattr(architecture.model.get_input_embeddings(), "weight", None)
    if words is not None:  # what is wrong with one word is said of the texts that hold it
        broken = ~torch.isfinite(words[ids.to(words.device)]).all(-1).cpu()
        ids[broken] = next(iter(ids[~broken].tolist()), 0)
    if config.is_encoder_decoder and isinstance(ends[-1], int):
        ids[0, -1] = ends[-1]  # by which it finds a text's end
    ids = ids.to(weight.device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def one_by_one(architecture: Architecture) -> dict[nn.Module, Callable]:
    """The attentions that torch computes in one call, as calls that are seen one by one."""
    modules = architecture.modules.values()
    parts = [part for part in modules if isinstance(part, nn.MultiheadAttention)]
    return {part: partial(in_steps, part) for part in parts}


class _Layers(TorchFunctionMode):
    """Which modules compute attention, seen from outside: members of a list of modules.

    Attributes:
        running: the modules that run, the outermost first.
        blocks: the outermost members inside of which there was an attention, one a layer.
        norm: the module without parts that normalizes first, if it runs before all of these.
        plain: whether there is no other norm before them, or none at all.
    """

    def __init__(self, architecture: Architecture):
        super().__init__()
        modules = architecture.modules.values()
        lists = [part for part in modules if isinstance(part, nn.ModuleList)]
        self.members = {member for part in lists for member in part}
        self.forwards = {part: partial(self._run, part) for part in modules}
        self.forwards |= one_by_one(architecture)
        self.running: list[nn.Module] = []
        self.blocks: list[nn.Module] = []
        self.norm: nn.Module | None = None
        self.plain = True
        self._found = False

    @property
    def inside(self) -> bool:
        """Whether a member of a list runs."""
        return not self.members.isdisjoint(self.running)

    def _run(self, module: nn.Module, inner: Callable, *args: Any, **kwargs: Any) -> Any:
        self.running.append(module)
        output = inner(*args, **kwargs)
        self.running.pop()
        if self._found and not self.inside:
            self.blocks.append(module)
            self._found = False
        return output

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Note an attention: a fused kernel, or a softmax over keys."""
        output = func(*args, **(kwargs or {}))
        kind = KINDS.get(getattr(func, "__name__", ""))
        if kind in ("layer norm", "root norm", "held") and not (self.inside or self.blocks):
            leaf = None if [*self.running[-1].children()] else self.running[-1]
            self.norm = self.norm or leaf
            self.plain &= self.norm is not None
        over_keys = kind == "softmax" and output.dim() > 2
        self._found |= self.inside and (kind == "attention" or over_keys)
        return output


def laid_out(handle: Handle) -> Architecture:
    """`describe`, with what one short pass finds: the model's blocks, and the norm before them.

    A layer is a call of the outermost member of
    a list of modules inside of which there is an attention.

    Raises:
        TypeError: see `describe`; or a function, which has no layers.
        ValueError: what `prove_batch` refuses.
    """
    architecture = describe(handle)
    model = architecture.model
    if architecture.blocks:
        return architecture
    if isinstance(model, FunctionForSequenceClassification):
        raise TypeError(ONLY_REMOVAL)
    state = "layers", state_of(architecture)
    layers = measured(model, state, partial(_layers, architecture))
    norm, blocks = layers.norm, tuple(layers.blocks)
    return replace(architecture, blocks=blocks, embedding_norm=norm, summed=layers.plain)


def _layers(architecture: Architecture) -> _Layers:
    inputs = short_text(architecture)
    prove_batch(architecture, inputs)
    layers = _Layers(architecture)
    with torch.no_grad(), replaced(layers.forwards), layers:
        architecture.model(**architecture.arguments(inputs))
    return layers
