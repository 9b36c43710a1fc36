"""What is slow and sure: leave-one-out by a plain pass per unit, and the explicit ε-rules by hand.

The rules are written from the published equations, without autograd, `lrputils` or a model's own
forward pass: those of each operation, and a whole BERT taken through them. `stabilised` is the
z + ε·sign(z) of every denominator. Rows of a matrix are tokens.

Sources: ε-rule, Bach et al. (2015); halved products, softmax, identity rule and norms, Achtibat et
al. (2024); constant attention weights and norms' constant deviation, Ali et al. (2022).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lrputils.model.architectures import describe
from tests import tiny

# --- removal --------------------------------------------------------------------------------------

# Those count positions from one past the token by which texts are padded, which takes none.
COUNTING = "roberta", "xlm-roberta", "mpnet"


def own_positions(model: nn.Module, ids: Tensor) -> Tensor:
    """The positions (batch, tokens) of texts, padded or not, as the model itself counts them."""
    counting = model.config.model_type in COUNTING
    first = describe(model).word_embeddings.padding_idx if counting else -1
    counted = (ids != first).long()
    return counted.cumsum(1) * counted + first


@torch.no_grad()
def without(
    model: nn.Module,
    inputs: dict[str, Tensor],
    row: int,
    gone: Iterable[int] = (),
    removal: str = "attention-mask",
    *,
    every: bool = False,
) -> Tensor:
    """Logits of one text without the tokens `gone`, by one pass of the model's own.

    Of the next token's logits come those at the last token, or at every token.
    """
    architecture, one, gone = describe(model), tiny.row(inputs, row), [*gone]
    ids = one["input_ids"].clone()
    left = [i for i in range(ids.shape[1]) if removal != "delete" or i not in gone]
    if removal in ("mask", "pad", "unk"):
        ids[0, gone] = inputs.replacements[removal]
    positions = own_positions(model, ids)[:, : len(left)]
    words = architecture.word_embeddings(ids).detach().clone()
    if removal == "zero":
        words[0, gone] = 0
    mask = torch.ones(1, len(left), dtype=torch.long)
    if removal == "attention-mask":
        mask[0, gone] = 0
    types = {name: one[name][:, left] for name in ("token_type_ids",) if name in one}
    given = {"inputs_embeds": words[:, left], "position_ids": positions, **types}
    logits = model(**given, attention_mask=mask).logits[0]
    return logits if every or logits.dim() == 1 else logits[-1]


def leave_one_out(
    model: nn.Module,
    inputs: dict[str, Tensor],
    removal: str = "attention-mask",
    *,
    units: list[list[list[int]]] | None = None,
    read: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """(batch, tokens), float64: what is lost with each token, or each unit (at its first token).

    What is read of the logits is the predicted class's.
    """
    scores = torch.zeros(inputs["input_ids"].shape, dtype=torch.float64)
    for row, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        whole = without(model, inputs, row)
        target = whole.argmax()
        f = read or (lambda logits, target=target: logits[target])
        for gone in units[row] if units else [[token] for token in range(length)]:
            scores[row, gone[0]] = f(whole) - f(without(model, inputs, row, gone, removal))
    return scores


# --- rules ----------------------------------------------------------------------------------------


def stabilised(z: Tensor, eps: float) -> Tensor:
    """z + ε·sign(z), with sign(0) = 1 so that the denominator never vanishes for ε > 0."""
    return z + eps * torch.where(z >= 0, 1.0, -1.0).to(z.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, relevance: Tensor, eps: float) -> Tensor:
    """R(x_i) = Σ_j W_ji x_i / (z_j + ε sign z_j) R(z_j), z = W·x + b, for each row of x."""
    result = torch.zeros_like(x)
    for row in range(len(x)):
        z = weight @ x[row] + (0 if bias is None else bias)
        for j in range(len(z)):
            result[row] += weight[j] * x[row] / stabilised(z[j], eps) * relevance[row, j]
    return result


def residual(a: Tensor, b: Tensor, relevance: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """R(a) = a / (a + b + ε sign) R, and the same for b."""
    share = relevance / stabilised(a + b, eps)
    return a * share, b * share


def product(left: Tensor, right: Tensor, relevance: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Halved bilinear rule for O = L·R: each factor gets L_ji R_ip / (2 O_jp + ε sign) R(O_jp)."""
    output = left @ right
    of_left, of_right = torch.zeros_like(left), torch.zeros_like(right)
    for j in range(output.shape[0]):
        for p in range(output.shape[1]):
            share = left[j] * right[:, p] / stabilised(2 * output[j, p], eps) * relevance[j, p]
            of_left[j] += share
            of_right[:, p] += share
    return of_left, of_right


def constant_weights(weights: Tensor, value: Tensor, relevance: Tensor, eps: float) -> Tensor:
    """CP-LRP's rule for O = A·V: R(V_ip) = Σ_j A_ji V_ip / (O_jp + ε sign) R(O_jp)."""
    output = weights @ value
    result = torch.zeros_like(value)
    for j in range(output.shape[0]):
        for p in range(output.shape[1]):
            result[:, p] += (
                weights[j] * value[:, p] / stabilised(output[j, p], eps) * relevance[j, p]
            )
    return result


def softmax(scores: Tensor, relevance: Tensor) -> Tensor:
    """Eq. 5: R(Z_ji) = Z_ji (R(A_ji) − A_ji Σ_k R(A_jk)), row by row. It has no denominator."""
    result = torch.zeros_like(scores)
    for j in range(len(scores)):
        weights = torch.softmax(scores[j], 0)
        result[j] = scores[j] * (relevance[j] - weights * relevance[j].sum())
    return result


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, norm_eps: float, relevance: Tensor, eps: float
) -> Tensor:
    """LayerNorm with its standard deviation σ constant: the linear map diag(w/σ)·(1 − 1/n)."""
    size = x.shape[1]
    center = torch.eye(size, dtype=x.dtype) - torch.full((size, size), 1 / size, dtype=x.dtype)
    result = torch.zeros_like(x)
    for row in range(len(x)):
        deviation = torch.sqrt(x[row].var(unbiased=False) + norm_eps)
        matrix = (weight / deviation)[:, None] * center
        result[row] = linear(x[row : row + 1], matrix, bias, relevance[row : row + 1], eps)[0]
    return result


def held_layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, norm_eps: float, relevance: Tensor, eps: float
) -> Tensor:
    """LayerNorm with its mean μ and σ constant: the diagonal map w/σ with bias b − w·μ/σ."""
    result = torch.zeros_like(x)
    for row in range(len(x)):
        share = weight / torch.sqrt(x[row].var(unbiased=False) + norm_eps)
        matrix, of_mean = torch.diag(share), bias - share * x[row].mean()
        result[row] = linear(x[row : row + 1], matrix, of_mean, relevance[row : row + 1], eps)[0]
    return result


def rms_norm(x: Tensor, weight: Tensor, norm_eps: float, relevance: Tensor, eps: float) -> Tensor:
    """RMSNorm with its root mean square ρ constant: the diagonal map w/ρ."""
    result = torch.zeros_like(x)
    for row in range(len(x)):
        rms = torch.sqrt((x[row] ** 2).mean() + norm_eps)
        matrix = torch.diag(weight / rms)
        result[row] = linear(x[row : row + 1], matrix, None, relevance[row : row + 1], eps)[0]
    return result


# --- a whole BERT classifier ----------------------------------------------------------------------


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def _apply(module: nn.Linear, x: Tensor) -> Tensor:
    return x @ module.weight.T + module.bias


def _normalise(module: nn.LayerNorm, x: Tensor) -> Tensor:
    centered = x - x.mean(1, keepdim=True)
    deviation = torch.sqrt(x.var(1, unbiased=False, keepdim=True) + module.eps)
    return module.weight * centered / deviation + module.bias


def _back(module: nn.Linear | nn.LayerNorm, x: Tensor, relevance: Tensor, eps: float) -> Tensor:
    if isinstance(module, nn.LayerNorm):
        return layer_norm(x, module.weight, module.bias, module.eps, relevance, eps)
    return linear(x, module.weight, module.bias, relevance, eps)


@dataclass
class _Layer:
    """One block's activations, and how relevance goes back through it."""

    block: nn.Module
    x: Tensor

    def forward(self) -> Tensor:
        attention, heads = self.block.attention, self.block.attention.self.num_attention_heads
        maps = attention.self
        self.q, self.k, self.v = (_apply(m, self.x) for m in (maps.query, maps.key, maps.value))
        self.scale = (self.x.shape[1] // heads) ** -0.5
        self.columns = torch.arange(self.x.shape[1]).chunk(heads)
        self.mixed = torch.cat(
            [torch.softmax(self.scores(c), 1) @ self.v[:, c] for c in self.columns],
            dim=1,
        )
        self.attended = _apply(attention.output.dense, self.mixed)
        self.middle = _normalise(attention.output.LayerNorm, self.attended + self.x)
        self.hidden = _apply(self.block.intermediate.dense, self.middle)
        self.fed = _apply(self.block.output.dense, gelu(self.hidden))
        return _normalise(self.block.output.LayerNorm, self.fed + self.middle)

    def scores(self, columns: Tensor) -> Tensor:
        return self.scale * self.q[:, columns] @ self.k[:, columns].T

    def backward(self, relevance: Tensor, attention_rule: str, eps: float, path: str) -> Tensor:
        """Relevance at the block's input, of all paths, or of one."""
        output, attention = self.block.output, self.block.attention
        summed = _back(output.LayerNorm, self.fed + self.middle, relevance, eps)
        of_fed, of_middle = residual(self.fed, self.middle, summed, eps)
        of_hidden = _back(output.dense, gelu(self.hidden), of_fed, eps)  # then the identity rule
        of_middle = of_middle + _back(self.block.intermediate.dense, self.middle, of_hidden, eps)
        summed = _back(attention.output.LayerNorm, self.attended + self.x, of_middle, eps)
        of_attended, of_x = residual(self.attended, self.x, summed, eps)
        of_mixed = _back(attention.output.dense, self.mixed, of_attended, eps)
        parts = self.through_attention(of_mixed, attention_rule, eps) | {"residual": of_x}
        return parts.get(path, torch.zeros_like(of_x)) if path else sum(parts.values())

    def through_attention(self, relevance: Tensor, rule: str, eps: float) -> dict[str, Tensor]:
        of_q, of_k, of_v = (torch.zeros_like(self.q) for _ in range(3))
        for c in self.columns:
            weights = torch.softmax(self.scores(c), 1)
            if rule == "cp":
                of_v[:, c] = constant_weights(weights, self.v[:, c], relevance[:, c], eps)
                continue
            of_weights, of_v[:, c] = product(weights, self.v[:, c], relevance[:, c], eps)
            # "identity": R(Z) = R(A), as it is.
            of_scores = softmax(self.scores(c), of_weights) if rule == "attnlrp" else of_weights
            of_q[:, c], of_keys = product(self.scale * self.q[:, c], self.k[:, c].T, of_scores, eps)
            of_k[:, c] = of_keys.T
        maps = self.block.attention.self
        parts = {"value": _back(maps.value, self.x, of_v, eps)}
        if rule != "cp":
            parts["query"] = _back(maps.query, self.x, of_q, eps)
            parts["key"] = _back(maps.key, self.x, of_k, eps)
        return parts


def bert(
    model: nn.Module,
    input_ids: Tensor,
    target: int,
    attention_rule: Callable[[int], str] = lambda layer: "attnlrp",
    eps: float = 0.0,
    head_rule: str = "identity",
    follow: tuple[int, str] = (-1, ""),
) -> tuple[Tensor, Tensor]:
    """Logits `(classes,)` and relevance `(tokens,)` at the word embeddings of one text `(tokens,)`.

    `attention_rule(layer)` is "attnlrp", "cp" or "identity"; `head_rule`, the pooler's tanh's, is
    "identity" or "gradient". In the layer that `follow` names only the share of its path goes on:
    "value", "query", "key" or "residual". The model is a float64 BERT classifier.
    """
    embeddings = model.bert.embeddings
    word = embeddings.word_embeddings.weight[input_ids]
    others = (
        embeddings.position_embeddings.weight[: len(input_ids)]
        + embeddings.token_type_embeddings.weight[0]
    )
    x = _normalise(embeddings.LayerNorm, word + others)
    layers = []
    for block in model.bert.encoder.layer:
        layers.append(_Layer(block, x))
        x = layers[-1].forward()
    pooler = model.bert.pooler.dense
    pooled = torch.tanh(_apply(pooler, x[:1]))
    logits = _apply(model.classifier, pooled)

    relevance = torch.zeros_like(logits)
    relevance[0, target] = logits[0, target]
    relevance = _back(model.classifier, pooled, relevance, eps)  # then tanh: the identity rule
    if head_rule == "gradient":
        hidden = _apply(pooler, x[:1])
        relevance = relevance / pooled * (1 - pooled**2) * hidden
    of_first = _back(pooler, x[:1], relevance, eps)
    relevance = torch.cat([of_first, torch.zeros_like(x[1:])])
    for number, layer in reversed(list(enumerate(layers))):
        path = follow[1] if follow[0] == number else ""
        relevance = layer.backward(relevance, attention_rule(number), eps, path)
    relevance = _back(embeddings.LayerNorm, word + others, relevance, eps)
    of_word, _ = residual(word, others, relevance, eps)
    return logits[0], of_word.sum(1)
