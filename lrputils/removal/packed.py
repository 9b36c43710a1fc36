"""Linear layers by weights packed for oneDNN, where many tokens pass a model on a CPU in float32.

oneDNN multiplies by blocks of a weight and applies the activation while a block is in the cache.
torch gives both to compiled models alone; called here are the functions that such a model calls.
Results differ from the plain layers' by rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import activations
from transformers.pytorch_utils import Conv1D

from lrputils.model.architectures import Architecture
from lrputils.model.forwards import Forward, replaced

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
_TOKENS = 1024


@contextmanager
def packed(architecture: Architecture, tokens: int) -> Iterator[None]:
    """Inside the block, in this thread, the layers of the model's blocks use packed weights.

    Where that cannot be (another device or dtype, a torch without oneDNN), or `tokens`, the number
    that will pass, is too small, nothing changes.
    """
    weight = next(architecture.model.parameters())
    if (
        tokens < _TOKENS
        or weight.device.type != "cpu"
        or not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)
        or not hasattr(torch.ops.mkldnn, "_linear_pointwise")
    ):
        yield
        return
    with replaced(_Layers(architecture).forwards):
        yield


class _Layers:
    """Forward passes of linear layers and of the activations behind them.

    The first time that an activation is given what a linear layer has just returned, the pair is
    noted; from then on the layer returns the activated value.
    """

    def __init__(self, architecture: Architecture):
        modules = dict.fromkeys(m for block in architecture.blocks for m in block.modules())
        self.forwards: dict[nn.Module, Forward] = {}
        for module in modules:
            if type(module) in _FUSED:
                self.forwards[module] = self._activation(_FUSED[type(module)])
            elif type(module) in (nn.Linear, Conv1D) and module.weight.dtype == torch.float32:
                self.forwards[module] = self._linear(module)
        self.pairs: dict[nn.Module, tuple[str, str]] = {}
        self.last: tuple[nn.Module, Tensor] | None = None

    def _linear(self, module: nn.Module) -> Forward:
        weight = module.weight.T if isinstance(module, Conv1D) else module.weight
        weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)

        def forward(inner: Forward, x: Tensor) -> Tensor:
            name, formula = self.pairs.get(module, _ALONE)
            y = torch.ops.mkldnn._linear_pointwise(x, weight, module.bias, name, [], formula)
            self.last = module, y
            return y

        return forward

    def _activation(self, fused: tuple[str, str]) -> Forward:
        def forward(inner: Forward, x: Tensor) -> Tensor:
            if self.last is None or self.last[1] is not x:
                return inner(x)
            done = self.last[0] in self.pairs
            self.pairs[self.last[0]] = fused
            return x if done else inner(x)

        return forward
