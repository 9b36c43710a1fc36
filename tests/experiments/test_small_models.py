"""The planted rule: its texts, what training reaches, and the models that come with the package."""

import torch

from experiments import small_models as recipe
from experiments import zoo


def error(model) -> float:
    """Root mean square of f less the rule's, on new texts."""
    inputs, _ = recipe._rule_batches(torch.Generator().manual_seed(10**6), 2000)
    f = model(**inputs).logits[:, 1]
    return float((f - recipe.rule(*inputs.values())).square().mean().sqrt())


def test_the_rule_by_hand():
    S, R, Q, A, B = range(recipe.S, recipe.B + 1)
    ids = torch.tensor([[S, 9, 9], [R, Q, 9], [A, B, 9], [A, 9, 9], [9, 9, 9], [A, B, R]])
    assert recipe.rule(ids, torch.ones_like(ids)).tolist() == [1, 1, 1, -1, -1, 1]
    first_hidden = torch.tensor([0, 1, 1]).expand_as(ids)
    assert recipe.rule(ids, first_hidden).tolist() == [-1, 1, -1, -1, -1, 1]


def test_training_approaches_the_rule_and_can_be_loaded(tmp_path):
    few = recipe._train_planted(0, 2)
    assert error(recipe._train_planted(0, 30)) < error(few)
    zoo.save({0: few}, "planted", tmp_path)
    again = zoo.load("planted", 0, tmp_path).state_dict()
    for name, tensor in few.state_dict().items():
        torch.testing.assert_close(again[name], tensor, atol=1e-2, rtol=1e-3)
