"""One attention, computed in other ways: the function stays, the products in it do not.

A *form* computes softmax(s·Q·Kᵀ)·V from linear maps, products and functions of one tensor, and
returns what plain attention returns, to rounding. The rules follow the form: a product's factors
share its relevance (You et al., Eqs. 3a to 4b); a linear map takes the plain gradient (Eq. 1), and
so does a function of one tensor, be it the softmax, an exponential or a reciprocal, whose Taylor
bias is dropped (Eq. 5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from experiments.attention import even_weights
from experiments.by_text import in_batches
from lrputils import stats
from lrputils.model.architectures import Architecture, Handle
from lrputils.model.attention import AttentionCall, additive, with_all_heads
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.readout import read
from lrputils.propagation.composites import (
    ATTN_LRP,
    CP_LRP,
    GRADIENT,
    Composite,
    covered,
    installed,
)
from lrputils.propagation.rules import PRODUCT, UNITS
from lrputils.removal.leave_one_out import leave_one_out

# What blocks call their maps of queries, where nothing but a bias is added to what they give.
_QUERIES = {f"attention.{name}" for name in ("self.query", "attn.q", "q_lin", "q_proj", "query")}
_RULES = {"attnlrp": ATTN_LRP, "cp-lrp": CP_LRP}


@dataclass(frozen=True)
class _Site:
    """Where a form is computed: the factors, with a value for every query head, and what they need.

    `rule` is the composite's for attention: "attnlrp" halves a product's relevance, and under "cp"
    all that is made of queries and keys is a constant. `query_bias`, `(heads, 1, size)`, is a part
    of every query; 0 where the model has none.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    call: AttentionCall
    rule: str
    query_bias: Tensor | float

    def scores(self) -> Tensor:
        """s·Q·Kᵀ, one product, without the mask: `(batch, heads, queries, keys)`."""
        query, key = self.split(self.query, self.key)
        return self.call.with_factors(query, key, self.value).scores()

    def _masked(self, scores: Tensor) -> Tensor:
        """Z: the scores with the mask, which is a constant summand, as the method sees them."""
        masked = scores + additive(self.call.mask, scores.dtype)
        return masked.detach() if self.rule == "cp" else masked

    def weights(self) -> Tensor:
        """A = softmax(Z), one node."""
        return torch.softmax(self._masked(self.scores()), -1)

    def times(self, left: Tensor, right: Tensor) -> Tensor:
        """A product of matrices, by the rule."""
        left, right = self.split(left, right)
        return left @ right

    def split(self, left: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        """The two factors of a product, with the shares of its relevance that they keep."""
        return PRODUCT["halved" if self.rule == "attnlrp" else "gradient"](left, right)


Form = Callable[[_Site], Tensor]


def standard(at: _Site) -> Tensor:
    """A·V with A = softmax(s·Q·Kᵀ)."""
    return at.times(at.weights(), at.value)


def _basis(size: int, like: Tensor) -> Tensor:
    """An invertible matrix `(size, size)`, the same in every run."""
    generator = torch.Generator().manual_seed(size)
    orthogonal, _ = torch.linalg.qr(torch.randn(size, size, generator=generator).double())
    return (orthogonal * torch.linspace(0.5, 2, size).double()).to(like)


def _value_basis(at: _Site) -> Tensor:
    """A·(V·P) and P⁻¹ behind: W_V and W_O multiplied by P and P⁻¹, as in merging the two."""
    basis = _basis(at.value.shape[-1], at.value)
    return standard(replace(at, value=at.value @ basis)) @ torch.linalg.inv(basis)


def _query_key_basis(at: _Site) -> Tensor:
    """(Q·P)·(K·P⁻ᵀ)ᵀ in place of Q·Kᵀ, as in scaling Q against K or merging W_Q·W_Kᵀ."""
    basis = _basis(at.query.shape[-1], at.query)
    return standard(replace(at, query=at.query @ basis, key=at.key @ torch.linalg.inv(basis).T))


def _key_bias(at: _Site) -> Tensor:
    """K + c: adds the same number to all scores of a query."""
    return standard(replace(at, key=at.key + _shift(at.key)))


def _value_bias(at: _Site) -> Tensor:
    """A·(V + c) − c: the rows of A sum to one."""
    shift = _shift(at.value)
    return standard(replace(at, value=at.value + shift)) - shift


def _shift(like: Tensor) -> Tensor:
    """A vector `(size,)` of the order of the tensor's own entries, the same in every run."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(like.shape[-1], generator=generator).to(like) * like.detach().std()


def _two_heads(at: _Site) -> Tensor:
    """Each head as two heads of the same weights, with half of W_V each."""
    half = replace(at, value=at.value / 2)
    return standard(half) + standard(half)


def _query_bias_apart(at: _Site) -> Tensor:
    """(Q − b_Q)·Kᵀ + b_Q·Kᵀ: with the bias multiplied out, the second term is linear in K."""
    bias = at.query_bias + 0 * at.query.detach()
    linear = at.call.with_factors(bias, at.key, at.value).scores()
    scores = replace(at, query=at.query - bias).scores() + linear
    return at.times(torch.softmax(at._masked(scores), -1), at.value)


def _exponentials(at: _Site) -> tuple[Tensor, Tensor]:
    """exp(Z), scaled down by a constant in every row, and the reciprocal of its row sums."""
    masked = at._masked(at.scores())
    exponentials = torch.exp(masked - masked.detach().amax(-1, keepdim=True))
    return exponentials, 1 / exponentials.sum(-1, keepdim=True)


def _normaliser_apart(at: _Site) -> Tensor:
    """The softmax as a product, exp(Z) times 1 / its row sum."""
    exponentials, reciprocal = at.split(*_exponentials(at))
    return at.times(exponentials * reciprocal, at.value)


def _normalised_last(at: _Site) -> Tensor:
    """(exp(Z)·V) times 1 / row sum: the order of FlashAttention, which fused kernels compute."""
    exponentials, reciprocal = _exponentials(at)
    output, reciprocal = at.split(at.times(exponentials, at.value), reciprocal)
    return output * reciprocal


def _apart(at: _Site, fixed: Tensor) -> Tensor:
    """C·V + (A − C)·V with a constant C: the first term is linear in V."""
    return fixed @ at.value + at.times(at.weights() - fixed, at.value)


def _own_value_apart(at: _Site) -> Tensor:
    """V + (A − I)·V: what a token keeps of itself, and what others change."""
    return _apart(at, torch.eye(at.value.shape[-2]).to(at.value))


def _mean_value_apart(at: _Site) -> Tensor:
    """U·V + (A − U)·V with uniform attention U: the mean value, and the deviations from it."""
    return _apart(at, even_weights(at.call))


# What a reader calls it → the form. The first is the one that `propagating` has.
FORMS: dict[str, Form] = {
    "A·V, A = softmax(QKᵀ)": standard,
    "values in another basis": _value_basis,
    "queries and keys in another basis": _query_key_basis,
    "a key bias more": _key_bias,
    "a value bias more, taken off": _value_bias,
    "each head as two": _two_heads,
    "query bias multiplied out": _query_bias_apart,
    "own value apart: V + (A − I)V": _own_value_apart,
    "mean value apart: UV + (A − U)V": _mean_value_apart,
    "softmax as exp(Z) · 1/s": _normaliser_apart,
    "normalised last: (exp(Z) V) · 1/s": _normalised_last,
}


@contextmanager
def refactored(
    model: Handle, form: Form, composite: Composite = ATTN_LRP, gate: Tensor | None = None
) -> Iterator[Architecture]:
    """Inside the block, `model` computes its attention in this form, with the rules of `composite`.

    `form` is one of `FORMS`, or a function like them. Of the composite's rules for attention a form
    knows "attnlrp", "cp", "gradient", "thirds" and "path". `gate`, `(batch, tokens)`, are positive
    weights of the keys, A_ji ∝ m_i exp(Z_ji).

    Raises:
        TypeError: the model is not covered.
        RuntimeError: rules are already installed in this model, in this thread.
    """
    architecture = covered(model)
    heads = architecture.model.config.num_attention_heads

    def _attention(call: AttentionCall) -> tuple[Tensor, None]:
        value, key = (with_all_heads(x, call.query) for x in (call.value, call.key))
        mask = call.mask
        if gate is not None:
            mask = additive(mask, gate.dtype) + gate.log()[:, None, None]
        block = architecture.blocks[call.layer].named_modules()
        bias = next((part.bias for path, part in block if path in _QUERIES), None)
        bias = 0.0 if bias is None else bias.view(heads, 1, -1)
        here = replace(call, key=key, value=value, mask=mask)

        def _formed(*factors: Tensor) -> Tensor:
            return form(_Site(*factors, here, composite.attention, bias))

        unit = UNITS.get(composite.attention)
        output = unit(_formed, *here.factors) if unit else _formed(*here.factors)
        return output.to(value.dtype).transpose(1, 2).contiguous(), None

    plain = composite.but(attention="gradient")  # the form has the attention's rules in it
    with installed(architecture, plain.rule, _attention):
        yield architecture


@in_batches("id")
def through_forms(
    classifier: Classifier,
    inputs: Inputs,
    _: Tensor,
    *,
    controls: bool = False,
    forms: Mapping[str, Form] = FORMS,
) -> Iterator[dict[str, Any]]:
    """Return how AttnLRP's maps through each form agree with that through the standard one.

    Called with a classifier and `Texts`, see `experiments.by_text.in_batches`; the class
    predicted on each whole text is explained.

    Args:
        classifier: `load_classifier`'s answer; in float64, differences of 1e-12 are seen.
        inputs: of a batch of the texts.
        controls: whether to measure CP-LRP, the gradient of a gate on every key
            (A_ji ∝ m_i exp(Z_ji), at m = 1) and LOO by the attention mask in every form, too.
        forms: name → form of attention.

    Returns:
        one row a text, form and method: `id`, `form`, `method`; `logit`, the change of the
        explained logit; `r` with the same method's map in the standard form; `moved`, the sum of
        its absolute changes over that of its absolute scores; `r_loo` with LOO, and
        `r_loo_standard`, that of the standard form.
    """
    where = inputs.valid_mask
    with refactored(classifier.model, standard) as architecture:
        target = read(architecture, inputs).target
    loo = leave_one_out(classifier.model, inputs, target=target, progress=False)
    for method in ("attnlrp", "cp-lrp", "gate gradient", "loo") if controls else ("attnlrp",):
        base, logits = _map(classifier, inputs, standard, method, target)
        known = stats.pearson(base, loo, where)
        for name, form in forms.items():
            scores, changed = _map(classifier, inputs, form, method, target)
            yield {
                "form": name,
                "method": method,
                "logit": (changed - logits).abs().double(),
                "r": stats.pearson(scores, base, where),
                "moved": ((scores - base).abs().sum(1) / base.abs().sum(1)).double(),
                "r_loo": stats.pearson(scores, loo, where),
                "r_loo_standard": known,
            }


def _map(
    classifier: Classifier, inputs: Inputs, form: Form, method: str, target: Tensor
) -> tuple[Tensor, Tensor]:
    """One method's scores `(batch, tokens)` through a form, and the explained logits `(batch,)`."""
    gate = None
    if method == "gate gradient":
        dtype = next(classifier.model.parameters()).dtype
        gate = torch.ones(inputs.valid_mask.shape, dtype=dtype, device=target.device)
        gate.requires_grad_()
    with refactored(classifier.model, form, _RULES.get(method, GRADIENT), gate) as model:
        reading = read(model, inputs, target=target)
        if method == "loo":
            scores = leave_one_out(model, inputs, target=target, progress=False)
        elif gate is None:
            scores = reading.relevance(reading.gradient())
        else:
            scores = reading.per_token(torch.autograd.grad(reading.output.sum(), gate)[0])
    return scores, reading.output.detach()
