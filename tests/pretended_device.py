"""A pretended GPU: tensors say that they are on `cuda:0`, compute here, refuse what CUDA refuses.

`install()` is for a process of its own, before models are loaded. torch's private device does the
rest: a tensor there wraps one of this machine, each operation unwraps what it takes and wraps what
it gives, and one that mixes devices is refused with CUDA's sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

CUDA = torch.device("cuda", 0)
PRIVATE = torch.device("privateuseone", 0)
NO_NUMPY = (
    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
    "memory first."
)
MIXED = (
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
    "cpu! (in {name})"
)
# What takes tensors of both devices on CUDA, too: copies, and an index of this machine's.
_COPIES = ("_to_copy", "copy_", "_copy_from")
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")


class Pretended(Tensor):
    """A tensor of the pretended device; `here` holds its numbers."""

    here: Tensor
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, here: Tensor) -> Pretended:
        # A view of a tensor that autograd knows is one, too, also under inference mode.
        with torch.inference_mode(False):
            tensor = Tensor._make_wrapper_subclass(
                cls,
                here.size(),
                strides=here.stride(),
                storage_offset=here.storage_offset(),
                dtype=here.dtype,
                device=PRIVATE,
            )
        tensor.here = here
        return tensor

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        return compute(operation, *args, **(kwargs or {}))

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(NO_NUMPY)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(NO_NUMPY)

    def tolist(self) -> Any:
        return self.here.tolist()

    def __repr__(self, **kwargs: Any) -> str:
        return f"{self.here!r:.200} on {CUDA}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _restored, (self.detach().here, self.requires_grad)

    def __deepcopy__(self, memo: dict) -> Tensor:
        copied = Pretended(self.detach().here.clone()).requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied


def _restored(here: Tensor, requires_grad: bool) -> Tensor:
    return Pretended(here).requires_grad_(requires_grad)


def compute(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Run one operation here, for tensors of the pretended device."""
    name = operation.overloadpacket.__name__
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    there = [x for x in tensors if isinstance(x, Pretended)]
    mixed = there and any(x.dim() and not isinstance(x, Pretended) for x in tensors)
    indexed = name in _INDEXING and isinstance(args[0], Pretended)
    if mixed and name not in _COPIES and not indexed:
        raise RuntimeError(MIXED.format(name=name))
    device = kwargs.get("device")
    stays = device.type != "cpu" if device is not None else bool(there)
    if name in _COPIES[1:]:
        stays = isinstance(args[0], Pretended)
    given = {key: torch.device("cpu") if key == "device" else x for key, x in kwargs.items()}
    args_here, kwargs_here = tree_map(_unwrapped, (args, given))
    result = operation(*args_here, **kwargs_here)
    if not stays:
        return result
    result = tree_map(lambda x: Pretended(x) if type(x) is Tensor else x, result)
    return return_and_correct_aliasing(operation, args, kwargs, result) if there else result


def _unwrapped(x: Any) -> Any:
    return x.here if isinstance(x, Pretended) else x


# What C++ makes empty and then sizes: a wrapper's size is fixed, so it is made whole.
_SIZED_LATER = (
    *("arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace", "randperm"),
    *("randperm.generator", "tril_indices", "triu_indices"),
)


# From Python's numbers: made here and brought there, since C++ does so beside the dispatcher.
_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray)


class _Cuda(TorchFunctionMode):
    """Reads "cuda" as the private device, wherever a device is named."""

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        args, kwargs = tree_map(_private, (args, kwargs or {}))
        if function is Tensor.pin_memory:  # memory of this machine stays as it is
            return args[0]
        if function in (Tensor.__getitem__, Tensor.__setitem__):
            args = args[0], _index(args[1]), *args[2:]
        if function is Tensor.new_tensor:
            like = {"dtype": args[0].dtype, "device": args[0].device} | kwargs
            function, args, kwargs = torch.tensor, args[1:], tree_map(_private, like)
        if function in _FROM_DATA and kwargs.get("device") == PRIVATE:
            of_data = {name: x for name, x in kwargs.items() if name != "device"}
            return function(*args, **of_data).to(PRIVATE)
        return function(*args, **kwargs)


def _index(index: Any) -> Any:
    """An index whose lists are tensors, which C++ would make of them beside the dispatcher."""
    if isinstance(index, tuple):
        return tuple(map(_index, index))
    if not isinstance(index, list | np.ndarray):
        return index
    return torch.as_tensor(index, dtype=None if len(index) else torch.long)


def _private(x: Any) -> Any:
    named = x.type if isinstance(x, torch.device) else x
    return PRIVATE if isinstance(named, str) and named in ("cuda", "cuda:0") else x


_libraries: list[torch.library.Library] = []  # what is registered lasts as long as they do


def install() -> None:
    """Pretend that this process has a GPU. There is no way back."""
    _setup_privateuseone_for_python_backend("pretended")
    every, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    every.fallback(compute, "PrivateUse1")
    for name in _SIZED_LATER:
        packet, _, overload = name.partition(".")
        operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
        aten.impl(name, partial(compute, operation), "PrivateUse1")
    _libraries.extend((every, aten))
    for name, answer in _ANSWERS.items():
        setattr(torch.cuda, name, answer)
    _Cuda().__enter__()


_ANSWERS: dict[str, Callable] = {
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "synchronize": lambda *args: None,
    "empty_cache": lambda: None,
    "get_device_name": lambda *args: "pretended",
    "reset_peak_memory_stats": lambda *args: None,
    "max_memory_allocated": lambda *args: 0,
    "mem_get_info": lambda *args: (8 << 30, 16 << 30),
    "is_bf16_supported": lambda *args, **kwargs: True,
}


if __name__ == "__main__":  # as PYTHONSTARTUP names it to a kernel
    install()
