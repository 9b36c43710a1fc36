"""Linear layers by weights packed for oneDNN on a CPU, and in lower precision.

oneDNN multiplies by blocks of a weight and applies the activation while a block is in the cache.
torch gives both to compiled models alone; called here are the functions that such a model calls.
Results differ from the plain layers' by rounding.

"bf16" rounds the factors of these products to bfloat16, and nothing else: the residual stream,
normalisation, attention, the last block and the head stay in float32. That is ten times as accurate
as a model in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import activations
from transformers.pytorch_utils import Conv1D

from lrputils.model.architectures import Architecture
from lrputils.model.forwards import Forward, matmul_precision, replaced

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
def packed(architecture: Architecture, tokens: int, precision: str = "float32") -> Iterator[None]:
    """Inside the block, in this thread, the layers of the model's blocks use packed weights.

    Where that cannot be (another device or dtype, a torch without oneDNN), or `tokens`, the number
    that will pass, is too small, nothing changes in float32.

    Args:
        architecture: of the model.
        tokens: how many will pass.
        precision: of the products: "float32", "bf16", or on a GPU "tf32".
    """
    device = next(architecture.model.parameters()).device
    fused = (
        device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        # Processors without AVX-512 refuse to pack weights in bfloat16.
        and (precision != "bf16" or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )
    if precision == "tf32":
        with matmul_precision(precision, device):
            yield
    elif precision == "bf16" or (fused and tokens >= _TOKENS):
        with replaced(_Layers(architecture, fused, precision).forwards):
            yield
    else:
        yield


class _Layers:
    """Forward passes of linear layers and of the activations behind them.

    The first time that an activation is given what a linear layer has just returned, the pair is
    noted; from then on the layer returns the activated value.
    """

    def __init__(self, architecture: Architecture, fused: bool = True, precision: str = "float32"):
        blocks = architecture.blocks
        modules = dict.fromkeys(m for block in blocks for m in block.modules())
        # The last block is computed for one token a row: rounding would save nothing there.
        low = {m for block in blocks[:-1] for m in block.modules()} if precision == "bf16" else ()
        self.forwards: dict[nn.Module, Forward] = {}
        for module in modules:
            plain = type(module) in (nn.Linear, Conv1D) and module.weight.dtype == torch.float32
            if fused and type(module) in _FUSED:
                self.forwards[module] = self._activation(_FUSED[type(module)])
            elif plain and (fused or module in low):
                dtype = torch.bfloat16 if module in low else torch.float32
                self.forwards[module] = self._linear(module, dtype, fused)
        self.pairs: dict[nn.Module, tuple[str, str]] = {}
        self.last: tuple[nn.Module, Tensor] | None = None

    def _linear(self, module: nn.Module, dtype: torch.dtype, fused: bool) -> Forward:
        weight = module.weight.T if isinstance(module, Conv1D) else module.weight
        weight = weight.detach().to(dtype).contiguous()
        bias = None if module.bias is None else module.bias.to(dtype)
        if fused:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)

        def forward(inner: Forward, x: Tensor) -> Tensor:
            if not fused:
                return F.linear(x.to(dtype), weight, bias).float()
            pair = self.pairs.get(module, _ALONE)
            y = torch.ops.mkldnn._linear_pointwise(x.to(dtype), weight, bias, pair[0], [], pair[1])
            # What is activated goes into the next product as it is.
            y = y if pair != _ALONE else y.float()
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
