"""Small networks of linear layers in exact fractions: the ε-rule beside Leave-One-Out.

A network is a list of steps: a matrix, a pair (matrix, bias), "relu", or "product", which
multiplies what it gets into one number. The last step gives one number, f(x).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod
from numbers import Number

from lrputils.products.trees import exact

Step = str | Sequence
Vector = list[Fraction]


def _linear(step: Sequence) -> tuple[list[Vector], Vector]:
    matrix, bias = step if isinstance(step, tuple) else (step, [0] * len(step))
    return [[*map(exact, row)] for row in matrix], [*map(exact, bias)]


def _forward(step: Step, x: Vector) -> Vector:
    if step == "relu":
        return [max(value, Fraction(0)) for value in x]
    if step == "product":
        return [prod(x, start=Fraction(1))]
    matrix, bias = _linear(step)
    pairs = zip(matrix, bias, strict=True)
    return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in pairs]


def output(network: Sequence[Step], x: Sequence[Number | str]) -> Fraction:
    """Return f(x)."""
    x = [*map(exact, x)]
    for step in network:
        x = _forward(step, x)
    (value,) = x
    return value


def epsilon_rule(
    network: Sequence[Step], x: Sequence[Number | str], epsilon: Number | str = 0
) -> Vector:
    """Return relevance at x, sent down step by step.

    A linear layer by Bach et al.'s ε-rule, R(x_i) = Σ_j W_ji x_i / (z_j + ε sign z_j) R(z_j) with
    z = W·x + b; a ReLU by the identity rule; a product in equal parts, without ε.

    Raises:
        ZeroDivisionError: some z_j and ε are 0.
    """
    epsilon, states = exact(epsilon), [[*map(exact, x)]]
    for step in network:
        states.append(_forward(step, states[-1]))
    relevance = states.pop()
    for step, below in zip(reversed(network), reversed(states), strict=True):
        if step == "product":
            relevance = [relevance[0] / len(below) for _ in below]
        elif step != "relu":
            above = _forward(step, below)
            flow = [
                r / (z + (epsilon if z >= 0 else -epsilon))
                for r, z in zip(relevance, above, strict=True)
            ]
            columns = zip(*_linear(step)[0], strict=True)
            relevance = [
                value * sum(w * g for w, g in zip(column, flow, strict=True))
                for value, column in zip(below, columns, strict=True)
            ]
    return relevance


def leave_one_out(network: Sequence[Step], x: Sequence[Number | str]) -> Vector:
    """Return f(x) − f(x with 0 in place of x_i) for every i."""
    whole, places = output(network, x), range(len(x))
    return [whole - output(network, [0 if i == j else x[j] for j in places]) for i in places]


def beside_loo(
    networks: Mapping[str, Sequence[Step]], x: Sequence[Number | str], epsilon: Number | str = 0
) -> dict[str, dict[str, str | bool]]:
    """Return what the ε-rule and Leave-One-Out say of x in each network, and whether they agree.

    name → `relevance`, `LOO`, `sum of relevance` and `f(x)` as texts, `is LOO`, `conserves`.
    """
    found = {}
    for name, network in networks.items():
        scores, loo = epsilon_rule(network, x, epsilon), leave_one_out(network, x)
        total, value = sum(scores), output(network, x)
        shown = {"relevance": scores, "LOO": loo, "sum of relevance": [total], "f(x)": [value]}
        texts = {column: ", ".join(map(str, numbers)) for column, numbers in shown.items()}
        found[name] = texts | {"is LOO": scores == loo, "conserves": total == value}
    return found
