"""A network is its operations: what depends on the text is seen, ruled or replaced at each of them.

A mode of torch sees every call while a forward pass of one model runs in one thread; no module is
asked what it is. What depends on the text requires a gradient, since the words do and parameters
do not. A function answers the model's attention calls, of the fused kernel or spelled out as a
product, a softmax and a product. With a rulebook gradients follow its rules:

| operation on what depends on the text | what flows back |
|---|---|
| attention, or its products and softmax where they are no one call | its rule |
| a product of two such tensors, entry by entry | the product's rule |
| an elementwise function, in one call or spelled out | one unit, by the activation's rule |
| a norm; a divisor, a root, a deviation | the norm's rule |
| what is linear | the gradient |
| anything else | refused, by its name |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lrputils.model.architectures import WITHOUT_RULES, Architecture, Handle
from lrputils.model.attention import AttentionCall, AttentionFunction, additive
from lrputils.model.forwards import is_replaced, replaced
from lrputils.model.kinds import ENTRYWISE, KINDS
from lrputils.model.proof import laid_out, one_by_one

# Names the rule of an operation in a layer; None is outside the layers.
Rulebook = Callable[[str, int | None], Any]


class _Unit(NamedTuple):
    """Of which tensor another one is an elementwise function; noted on it as `_unit`.

    Attributes:
        root: that tensor; None for the tensor itself.
        curved: whether the function is not linear.
        ruled: whether the activation's rule leads back to the root, past what is in between.
        divides: whether it is a reciprocal root or deviation, by which a norm multiplies.
    """

    root: Tensor | None = None
    curved: bool = False
    ruled: bool = False
    divides: bool = False


class _Spelled(NamedTuple):
    """How far a tensor spells an attention out; noted on it as `_spelled`.

    Attributes:
        call: the attention, without its values.
        weighs: whether it is the weights; else the scores.
    """

    call: AttentionCall | None = None
    weighs: bool = False


_ITSELF, _NOTHING = _Unit(), _Spelled()


def _unit_of(x: Any) -> _Unit:
    return getattr(x, "_unit", _ITSELF)


def _spelled_by(x: Any) -> _Spelled:
    return getattr(x, "_spelled", _NOTHING)


def _is_live(x: Any) -> bool:
    """Whether it depends on the text."""
    if not isinstance(x, Tensor) or not x.requires_grad:
        return False
    return not (x.is_leaf and isinstance(x, nn.Parameter))


def _tensors(*parts: Any) -> list[Tensor]:
    """The tensors among parts, also in lists of them."""
    found: list[Tensor] = []
    for part in parts:
        if isinstance(part, Tensor):
            found.append(part)
        elif isinstance(part, (list, tuple)):
            found += _tensors(*part)
    return found


class Operations(TorchFunctionMode):
    """What is done with the operations of one model in one thread.

    Attributes:
        function: answers the attention calls of the blocks.
        rulebook: names the rule of an operation in a layer; None is the plain gradient.
        constants: whether summands that do not depend on the text are added. Without them CP-LRP
            conserves.
        layer: the running one; None outside the blocks.
        met: what was done with operations on what depends on the text, by their names.
        apart: whether an attention was met that is no call: its products and softmax have rules.
    """

    def __init__(
        self,
        architecture: Architecture,
        function: AttentionFunction,
        rulebook: Rulebook | None = None,
        constants: bool = True,
    ):
        super().__init__()
        self.architecture = architecture
        self.function = function
        self.rulebook = rulebook
        self.constants = constants
        self.layer: int | None = None
        self.met: dict[str, str] = {}
        self.apart = False
        self._layers = count()  # of this pass: a block that serves several comes again
        self._on = False
        self._spells = False  # whether a product was met that may begin a spelled-out attention

    @property
    def forwards(self) -> dict[nn.Module, Callable]:
        """Forward passes between which the mode is on, and which count the layers."""
        found = dict.fromkeys((self.architecture.model, self.architecture.backbone), self._whole)
        found |= dict.fromkeys(self.architecture.blocks, self._block)
        return found | one_by_one(self.architecture)

    def _whole(self, inner: Callable, *args: Any, **kwargs: Any) -> Any:
        if self._on:
            return inner(*args, **kwargs)
        self._layers, self._on = count(), True
        try:
            with self:
                return inner(*args, **kwargs)
        finally:
            self._on = False

    def _block(self, inner: Callable, *args: Any, **kwargs: Any) -> Any:
        self.layer = next(self._layers)
        try:
            return inner(*args, **kwargs)
        finally:
            self.layer = None

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Answer one call; inside, the mode is off."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        kind = KINDS.get(name)
        begins = kind == "product" or kind == "softmax"
        looked_at = self.rulebook is not None or self._spells or begins or kind == "attention"
        if kind == "plain" or not looked_at:
            return func(*args, **kwargs)
        if name == "__get__" and not isinstance(output := func(*args), Tensor):
            return output
        if kwargs and kind in ("product", "linear map"):
            args = (*args, *(kwargs.pop(key) for key in _FACTORS if key in kwargs))
        inside = self.layer is not None
        answer = None
        if inside and kind == "attention":
            answer = self._attend(*args, **kwargs)
        elif inside and kind == "product" and _spelled_by(args[0]).weighs:
            answer = self._answer(replace(_spelled_by(args[0]).call, value=args[1]))
        if answer is not None:
            return answer
        ruled = self.rulebook is not None and torch.is_grad_enabled()
        tensors = _tensors(*args, *kwargs.values()) if ruled else []
        if any(map(_is_live, tensors)):
            output = self._ruled(name, kind, func, args, kwargs)
        elif any(x.requires_grad for x in tensors):
            with torch.no_grad():  # what a parameter alone gives does not depend on the text
                output = func(*args, **kwargs)
        else:
            output = func(*args, **kwargs)
        if inside and (begins or (self._spells and kind in _FOLLOWED)):
            self._follow(name, kind, output, args, kwargs)
        return output

    def _ruled(self, name: str, kind: str | None, func: Callable, args: tuple, kwargs: dict) -> Any:
        """The output of an operation on what depends on the text, its gradient by the rules."""
        if kind is not None:  # else it gives nothing that depends on the text, or is refused
            self.met.setdefault(name, kind)
        if self._spells and name not in _CARRYING:
            args = tuple(map(self._weighed, args))
        if kind in ENTRYWISE:
            entrywise = self._in_place if name in _CHANGING else self._entrywise
            return entrywise(name, kind, func, args, kwargs)
        if name in _CHANGING:
            _forget(args[0])
        if kind in _HANDLERS:
            return _HANDLERS[kind](self, name, func, args, kwargs)
        output = func(*args, **kwargs)
        if kind == "linear" and isinstance(output, Tensor) and _unit_of(args[0]).curved:
            output._unit = _Unit(curved=True)  # a gate that is looked up, as a router's
        if kind is None and name != "__get__" and any(map(_is_live, _tensors(output))):
            raise TypeError(
                f"{type(self.architecture.model).__name__} computes {name!r} of what depends on "
                "the text, and there is no rule for that"
            )
        return output

    def _rule(self, operation: str) -> Any:
        return self.rulebook(operation, self.layer)  # type: ignore[misc]

    def check_calls(self) -> None:
        """Refuse a model of which an attention was met that `function` did not answer.

        Raises:
            TypeError: there was one, or none at all; or the model reads its words twice.
        """
        name = type(self.architecture.model).__name__
        if self.architecture.config.is_encoder_decoder:
            raise TypeError(f"{name} reads its words twice, in an encoder and in a decoder")
        if self.apart or "attention" not in self.met:
            raise TypeError(
                f"{name} has an attention that is not softmax(Q·Kᵀ + mask)·V in one call or three "
                f"steps, and this method needs its weights. {WITHOUT_RULES}; LRP may work, too"
            )

    # --- attention --------------------------------------------------------------------------------

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor | None:
        """Answer a call of the fused kernel."""
        if is_causal:
            seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
            attn_mask = seen.tril()[None, None]
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return self._answer(AttentionCall(self.layer, query, key, value, attn_mask, scale))

    def _answer(self, call: AttentionCall) -> Tensor | None:
        """An attention's output, `(batch, heads, tokens, size)`, as `function` gives it, if any."""
        self.met.setdefault("attention", "attention")
        answer = self.function(call)
        return None if answer is None else answer[0].transpose(1, 2)

    def _follow(self, name: str, kind: str, output: Tensor, args: tuple, kwargs: dict) -> None:
        """Note on the output how far it spells an attention out: Q·Kᵀ, scaled, masked, softmax."""
        left, other = args[0], args[1] if len(args) > 1 else None
        if kind == "product":
            if output.dim() == 4 and name in ("matmul", "__matmul__"):
                call = AttentionCall(self.layer, left, other.transpose(-2, -1), None, None, 1.0)
                output._spelled, self._spells = _Spelled(call), True
            return
        mine, other = (other, left) if hasattr(other, "_spelled") else (left, other)
        known, weighs = _spelled_by(mine)
        if known is None:
            if kind == "softmax" and output.dim() > 2:
                self.apart |= output.dim() > 3 or output.shape[-2] == output.shape[-1]
            return
        self.apart |= weighs and name not in _CARRYING
        after = _Spelled(known, weighs) if name in _CARRYING else None
        plain = after is None and not weighs and not _is_live(other)
        if plain and kind == "softmax" and kwargs.get("dim", other) in (-1, 3):
            after = _Spelled(known, weighs=True)
        elif plain and name in ("add", "__add__", "__radd__", "__iadd__", "add_"):
            summand = torch.as_tensor(other, dtype=output.dtype, device=output.device)
            after = _Spelled(replace(known, mask=additive(known.mask, output.dtype) + summand))
        elif plain and kind in ("times", "divided") and mine is left and known.mask is None:
            number = other.item() if isinstance(other, Tensor) and other.numel() == 1 else other
            if not isinstance(number, Tensor):
                factor = 1 / number if kind == "divided" else number
                after = _Spelled(replace(known, scaling=known.scaling * factor))
        if after is not None:
            output._spelled = after
        elif output is mine:
            del output._spelled

    # --- elementwise functions --------------------------------------------------------------------

    def _entrywise(self, name: str, kind: str, func: Callable, args: tuple, kwargs: dict) -> Tensor:
        """A sum, product or function, entry by entry; several of one tensor are one unit."""
        alive = [x for x in args if _is_live(x)]
        constants = [x for x in args if isinstance(x, Tensor) and not _is_live(x)]
        # A mask or a bias is no part of an elementwise function, as a number is.
        wide = any(x.numel() > 1 for x in constants)
        if kind == "plus" and wide and self.constants:
            return func(*args, **kwargs)
        units = [*map(_unit_of, alive)]
        pairs = zip(alive, units, strict=True)
        roots = [x if unit.root is None else unit.root for x, unit in pairs]
        if any(root is not roots[0] for root in roots) or not alive:
            return self._of_several(kind, func, args, kwargs)
        rule = self._rule("head" if self.layer is None else "activation")
        curved = any(unit.curved for unit in units)
        squared = len(alive) == 2 and kind in ("times", "divided")
        bends = kind == "activation" or any(unit.ruled for unit in units) or (squared and curved)
        # A small number only keeps a deviation from zero.
        small = any(isinstance(x, float) and abs(x) < 1e-3 for x in args)
        kept = self.constants or (not wide and (curved or small)) or len(alive) > 1
        if kind == "plus" and not kept:
            return _without_constant(name, alive[0], args)
        if bends and rule is not None:
            with torch.no_grad():
                value = func(*args, **kwargs)
            if value.shape != roots[0].shape:
                return self._of_several(kind, func, args, kwargs)
            output = rule(lambda _: value, roots[0])
            output._unit = _Unit(roots[0], curved=True, ruled=True)
            return output
        output = func(*args, **kwargs)
        if output is not alive[0] and output.shape == roots[0].shape:
            divides = kind == "divided" and (args[0] is not alive[0] or name.startswith("__r"))
            bent = curved or squared or divides or kind in ("curve", "activation")
            output._unit = _Unit(roots[0], bent)
        return output

    def _of_several(self, kind: str, func: Callable, args: tuple, kwargs: dict) -> Tensor:
        """A sum, product or quotient of different tensors."""
        left, right, *others = args
        if kind == "divided" and _is_live(right) and self._rule("norm") is not None:
            output = func(left, right.detach(), *others, **kwargs)
            output._unit = _Unit(curved=_unit_of(left).curved)
            return output
        if kind == "times" and not (_unit_of(left).divides or _unit_of(right).divides):
            # The gate is what a function gave, else the left one.
            rule = self._rule("product")
            if _unit_of(right).curved and not _unit_of(left).curved:
                right, left = rule(right, left)
            else:
                left, right = rule(left, right)
        return func(left, right, *others, **kwargs)

    def _in_place(self, name: str, kind: str, func: Callable, args: tuple, kwargs: dict) -> Tensor:
        """What overwrites its first argument."""
        mine = args[0]
        plain = name.strip("_")
        plain = {"itruediv": "div", "imul": "mul", "iadd": "add", "isub": "sub"}.get(plain, plain)
        function = getattr(torch, plain, None) or getattr(nn.functional, plain)
        unit, before = _unit_of(mine), mine.clone()
        before._unit = unit if unit.ruled else _Unit(curved=unit.curved)
        output = self._entrywise(plain, kind, function, (before, *args[1:]), kwargs)
        if kind not in _FOLLOWED:  # else `_follow` says what becomes of scores
            _forget(mine)
        mine._unit = _Unit(curved=_unit_of(output).curved)
        return mine.copy_(output)

    # --- the rest ---------------------------------------------------------------------------------

    def _product(self, name: str, func: Callable, args: tuple, kwargs: dict) -> Tensor:
        """A linear map, or a product of matrices, which gets the attention's rule."""
        if name in ("addmm", "baddbmm"):
            bias, *factors = args
            product = torch.mm if name == "addmm" else torch.bmm
            output = self._product("", product, tuple(factors), {}) * kwargs.get("alpha", 1)
            kept = self.constants or _is_live(bias)
            return output + kwargs.get("beta", 1) * bias if kept else output
        if name == "einsum":
            args = (args[0], *_tensors(*args[1:]))
        if sum(map(_is_live, args)) > 1:
            apart = self._rule("attention").apart
            args = tuple(apart(x) if _is_live(x) else x for x in args)
        if name in _BIASED and not self.constants:
            args = (*args[:2], None, *args[3:])
            kwargs = {key: value for key, value in kwargs.items() if key != "bias"}
        return func(*args, **kwargs)

    def _softmax(self, name: str, func: Callable, args: tuple, kwargs: dict) -> Tensor:
        output = func(*args, **kwargs)
        # As a part of an attention it follows the rule of the whole.
        spelled = self.layer is not None and hasattr(args[0], "_spelled")
        return output if spelled else self._rule("attention").weighing(output)

    def _weighed(self, x: Any) -> Any:
        """What is used otherwise than to weigh values: a softmax by its rule."""
        weighs = _spelled_by(x).weighs and _is_live(x)
        return self._rule("attention").weighing(x) if weighs else x

    def _held(self, name: str, func: Callable, args: tuple, kwargs: dict) -> Any:
        output = func(*args, **kwargs)
        if self._rule("norm") is not None:
            return output.detach()
        output._unit = _Unit(divides=True)
        return output

    def _norm(self, name: str, func: Callable, args: tuple, kwargs: dict) -> Tensor:
        """LayerNorm in one call, or RMSNorm, x · w / rms(x), with rms(x) held."""
        rule = self._rule("norm")
        given = dict(zip(_NORMS[name], args, strict=False)) | kwargs
        if name == "layer_norm" and not self.constants:
            given["bias"] = None
        if rule is None:
            return func(**given)
        if name == "layer_norm":
            return rule(**given)
        x, weight = given["input"], given.get("weight")
        plain = func(**given | {"input": x.detach(), "weight": None})
        output = x * (plain / x.detach()).nan_to_num()
        return output if weight is None else output * weight


def _forget(x: Any) -> None:
    """Drop what is noted of a tensor that is overwritten."""
    for note in ("_unit", "_spelled"):
        if hasattr(x, note):
            delattr(x, note)


def _without_constant(name: str, x: Tensor, args: tuple) -> Tensor:
    """A sum of x and a constant, without the constant."""
    other = args[1] if args[0] is x else args[0]
    shape = torch.broadcast_shapes(x.shape, getattr(other, "shape", ()))
    # x − c, c − x as a function of both, and as x's own method.
    minus = "sub" in name and (args[0] is not x) != name.strip("_").startswith("rsub")
    return -x.expand(shape) if minus else x.expand(shape) * 1


# Kinds that can be a part of a spelled-out attention.
_FOLLOWED = {"product", "softmax", "plus", "times", "divided", "linear"}
# Linear maps whose third argument is a bias.
_BIASED = {"linear", "conv1d", "conv2d"}
# Names of factors, in their order, where they are given by name.
_FACTORS = "input", "self", "mat1", "batch1", "weight", "other", "mat2", "batch2"
# The arguments of norms in one call.
_NORMS = {
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
}
# What overwrites its first argument.
_CHANGING = {name for name in KINDS if name.endswith("_") and not name.startswith("_")}
_CHANGING |= {name for name in KINDS if name.startswith("__i")} | {"__setitem__"}
_CARRYING = {"dropout", "to", "float", "type_as", "contiguous", "__get__"}
_HANDLERS: dict[str | None, Callable] = {
    "product": Operations._product,
    "linear map": Operations._product,
    "softmax": Operations._softmax,
    "held": Operations._held,
    "layer norm": Operations._norm,
    "root norm": Operations._norm,
}


@contextmanager
def routed(
    model: Handle,
    function: AttentionFunction,
    rulebook: Rulebook | None = None,
    *,
    constants: bool = True,
) -> Iterator[Operations]:
    """Inside the block, this thread's attention calls of `model` go through `function`.

    Args:
        model: any that `describe` takes.
        function: answers each call.
        rulebook: names the rules that gradients follow, by operation and layer.
        constants: see `Operations`.

    Raises:
        TypeError: the model is not covered (see `describe`).
        RuntimeError: this thread already routes this model.
    """
    architecture = laid_out(model)
    if is_replaced(architecture.backbone):
        raise RuntimeError(
            f"the attention of this {type(architecture.model).__name__} is already taken over in "
            "this thread: leave the first `with` block before entering a second one on the same "
            "model"
        )
    operations = Operations(architecture, function, rulebook, constants)
    with replaced(operations.forwards):
        yield operations
