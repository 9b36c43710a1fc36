"""Shortcuts of a forward pass that change its results by rounding alone.

Each is used where `lrputils.removal.packing` measured, on the model itself, that it gives the
model's own result.

*The last layer, for the token that the head reads.* What a text's other tokens become there is
never read, so what runs behind its attention runs for one token. What is left of the attention is
one query, which sees every token's state h through K and V: s·q·k_i = s·(W_Kᵀ·q)·h_i + a constant
that the softmax takes out, and Σ_i A_i·v_i = W_V·Σ_i A_i·h_i + b_V. So neither K nor V is computed.

*Distances of what is left.* Some models add to their scores what depends on how far apart two
tokens are, by their columns in the batch. After a deletion it is that of their columns in the text.

*Linear layers by oneDNN, on a CPU.* It multiplies by blocks of a weight and applies the activation
while a block is in the cache. torch gives both to compiled models alone; called here are the
functions that such a model calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import activations
from transformers.pytorch_utils import Conv1D

from lrputils.model.architectures import Architecture
from lrputils.model.attention import AttentionCall, additive
from lrputils.model.forwards import Forward, replaced
from lrputils.model.operations import routed

# Activation → oneDNN's name for it, and which formula.
_FUSED = {
    nn.ReLU: ("relu", ""),
    nn.GELU: ("gelu", "none"),
    activations.GELUActivation: ("gelu", "none"),
    activations.NewGELUActivation: ("gelu", "tanh"),
    activations.GELUTanh: ("gelu", "tanh"),
}
_ALONE = "none", ""
# With fewer tokens, packing costs more than it saves.
LEAST_TOKENS = 1024


class LastLayer(NamedTuple):
    """Modules of the last layer.

    Attributes:
        behind: those that run behind its attention.
        maps: the linear layers that give queries, keys and values, one head's beside the other's;
            empty where it has no such.
    """

    behind: tuple[nn.Module, ...]
    maps: tuple[nn.Linear, ...] = ()


class Shortcuts(NamedTuple):
    """Which shortcuts give a model's own result.

    Attributes:
        deletes: to delete tokens, where the others keep their positions, instead of masking them;
            the mask may be left out where nothing else is hidden.
        columns: whether distances are then those of the tokens' columns in the text.
        states: to apply a decoder's head to the states that are read.
        last: to compute the last layer for the token that the head reads, with these modules.
        routed: attention by the fused kernel.
        shares: to run a decoder's rows from the first change on.
        packed: linear layers by oneDNN.
    """

    deletes: bool = False
    columns: bool = False
    states: bool = False
    last: LastLayer | None = None
    routed: bool = False
    shares: bool = False
    packed: bool = False


PLAIN = Shortcuts()


def last_layer(architecture: Architecture, work: Callable[[], Any]) -> LastLayer:
    """Find the modules of the last layer, while `work` runs the model on one row.

    Only those count whose states are (rows, tokens, size).
    """
    last = architecture.blocks[-1]
    calls: list[AttentionCall] = []
    behind: list[nn.Module] = []
    given: list[tuple[nn.Module, Tensor]] = []

    def _note(module: nn.Module, inner: Forward, *args: Any, **kwargs: Any) -> Any:
        output, states = inner(*args, **kwargs), args[0] if args else None
        by_token = isinstance(states, Tensor) and states.dim() == 3 and len(states) == 1
        if by_token and calls:
            behind.append(module)
        elif by_token and type(module) is nn.Linear:
            given.append((module, output))
        return output

    def _keep(call: AttentionCall) -> None:
        if call.layer == architecture.layers - 1:
            calls.append(call)

    leaves = [module for module in last.modules() if not [*module.children()]]
    notes = {module: partial(_note, module) for module in leaves}
    with replaced(notes), routed(architecture, _keep):
        work()
    places = {output.untyped_storage().data_ptr(): module for module, output in given}
    maps = [places.get(each.untyped_storage().data_ptr()) for each in calls[0].factors]
    found = not architecture.causal and None not in maps
    return LastLayer(tuple(dict.fromkeys(behind)), tuple(maps) if found else ())


@contextmanager
def head_token_alone(
    architecture: Architecture, modules: LastLayer, head: Tensor
) -> Iterator[None]:
    """Inside the block, the last layer is computed for the column `head`, (rows,), of each row.

    The other columns' final states are wrong.
    """

    def _alone(inner: Forward, states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return inner(_column(states, head) if states.shape[1] > 1 else states, *args, **kwargs)

    with ExitStack() as undo:
        if modules.maps:
            layer = _Attention(architecture, modules.maps, head)
            undo.enter_context(replaced(layer.forwards))
            undo.enter_context(routed(architecture, layer))
        undo.enter_context(replaced(dict.fromkeys(modules.behind, _alone)))
        yield


def _column(states: Tensor, head: Tensor) -> Tensor:
    """Of each row `(rows, tokens, size)` one token, `(rows, 1, size)`."""
    return states[torch.arange(len(head), device=states.device), head][:, None]


class _Attention:
    """An attention function, and forward passes of the last layer's maps in front of it.

    Queries, keys and values of the tokens that are not read are zeros without memory.
    """

    def __init__(self, architecture: Architecture, maps: tuple[nn.Linear, ...], head: Tensor):
        self.head, self.layers = head, architecture.layers
        query, self.key, self.value = maps
        self.forwards: dict = {query: self._query}
        self.forwards |= dict.fromkeys((self.key, self.value), self._unused)

    def _query(self, inner: Forward, states: Tensor) -> Tensor:
        self.states = states
        return inner(_column(states, self.head)).expand_as(states)

    def _unused(self, inner: Forward, states: Tensor) -> Tensor:
        return states.new_zeros(()).expand_as(states)

    def __call__(self, call: AttentionCall) -> tuple[Tensor, None] | None:
        """The last layer's attention, of the head's token alone; the other layers' is left."""
        if call.layer < self.layers - 1:
            return None
        heads, tokens, size = call.query.shape[1:]
        by_head = (heads, size, -1)
        query = call.query[:, :, 0] * call.scaling
        seen = torch.einsum("bhe,hed->bhd", query, self.key.weight.view(by_head))
        weights = self._weights(seen @ self.states.transpose(1, 2), call.mask)
        mixed = weights @ self.states
        output = torch.einsum("bhd,hed->bhe", mixed, self.value.weight.view(by_head))
        if self.value.bias is not None:
            output = output + weights.sum(-1, keepdim=True) * self.value.bias.view(heads, size)
        return output[:, None].expand(-1, tokens, -1, -1), None

    def _weights(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """A of the head's token, (rows, heads, tokens); 0 where it may look nowhere, as fused."""
        if mask is None:
            return scores.softmax(-1)
        row = mask.expand(len(scores), -1, scores.shape[-1], -1)
        row = row[torch.arange(len(scores), device=row.device), :, self.head]
        weights = (scores + additive(row, scores.dtype)).softmax(-1)
        return weights * row.any(-1, keepdim=True) if row.dtype == torch.bool else weights


class _Stop(Exception):
    """Ends a forward pass of which no more is wanted."""


@contextmanager
def at_columns(architecture: Architecture, columns: Tensor) -> Iterator[None]:
    """Inside the block, blocks are given summands of scores at these columns, (rows, tokens).

    Those are what each takes that has an entry for each head and two tokens. They are made for
    whole texts by a pass that ends at the first block.
    """
    first, size = architecture.blocks[0], int(columns.max()) + 1
    made: list[Tensor] = []

    def _make(inner: Forward, *args: Any, **kwargs: Any) -> Any:
        made.extend(filter(_is_bias, (*args, *kwargs.values())))
        raise _Stop

    ids = columns.new_zeros(1, size)
    with suppress(_Stop), replaced({first: _make}):
        architecture.model(input_ids=ids, attention_mask=torch.ones_like(ids))
    (bias,) = made
    pairs = columns[:, :, None] * size + columns[:, None, :]
    chosen = bias[0].flatten(1)[:, pairs].transpose(0, 1)

    def _at(inner: Forward, *args: Any, **kwargs: Any) -> Any:
        args = tuple(chosen if _is_bias(x) else x for x in args)
        kwargs = {name: chosen if _is_bias(x) else x for name, x in kwargs.items()}
        return inner(*args, **kwargs)

    with replaced(dict.fromkeys(architecture.blocks, _at)):
        yield


def _is_bias(x: Any) -> bool:
    """Whether it is a summand of scores, (rows, heads, tokens, tokens), and no mask."""
    return isinstance(x, Tensor) and x.dim() == 4 and x.shape[1] > 1


@contextmanager
def fast_linear(architecture: Architecture, tokens: int) -> Iterator[None]:
    """Inside the block, in this thread, the layers of the model's blocks use packed weights.

    Where that cannot be (another device or dtype, a torch without oneDNN), or `tokens`, the number
    that will pass, is too small, nothing changes.
    """
    device = next(architecture.model.parameters()).device
    onednn = (
        device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
    with replaced(_Linear(architecture).forwards if onednn and tokens >= LEAST_TOKENS else {}):
        yield


class _Linear:
    """Forward passes of linear layers and of the activations behind them.

    The first time that an activation is given what a linear layer has just returned, the pair is
    noted; from then on the layer returns the activated value.
    """

    def __init__(self, architecture: Architecture):
        self.forwards: dict[nn.Module, Forward] = {}
        self.pairs: dict[nn.Module, tuple[str, str]] = {}
        self.last: tuple[nn.Module, Tensor] | None = None
        for module in dict.fromkeys(m for block in architecture.blocks for m in block.modules()):
            if type(module) in _FUSED:
                self.forwards[module] = partial(self._activate, _FUSED[type(module)])
            elif type(module) in (nn.Linear, Conv1D) and module.weight.dtype == torch.float32:
                weight = module.weight.T if isinstance(module, Conv1D) else module.weight
                packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
                self.forwards[module] = partial(self._multiply, module, packed)

    def _multiply(self, module: nn.Module, weight: Tensor, inner: Forward, x: Tensor) -> Tensor:
        pair = self.pairs.get(module, _ALONE)
        y = torch.ops.mkldnn._linear_pointwise(x, weight, module.bias, pair[0], [], pair[1])
        self.last = module, y
        return y

    def _activate(self, pair: tuple[str, str], inner: Forward, x: Tensor) -> Tensor:
        if self.last is None or self.last[1] is not x:
            return inner(x)
        done = self.last[0] in self.pairs
        self.pairs[self.last[0]] = pair
        return x if done else inner(x)
