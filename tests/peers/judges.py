"""Other libraries as judges: `make peers` installs them and fails where they do not agree.

captum and interpreto remove tokens, captum integrates gradients, LXT has AttnLRP's explicit rules.
`make test` collects no part of this file: these libraries are no part of the pinned environment.
"""

from __future__ import annotations

import pytest
import torch
from captum.attr import FeatureAblation, LayerIntegratedGradients
from lxt.explicit import functional as rules
from lxt.explicit.rules import epsilon_lrp, identity

import lrputils as lrp
from lrputils.study import sides
from tests import tiny

from interpreto import Granularity, Occlusion  # isort: skip  (imports transformers' models)

TEXTS = ["a film that is never dull", "an unwatchable film, dreck"]


@pytest.fixture(scope="module")
def clf():
    return lrp.load_classifier(device="cpu")


@pytest.fixture(params=TEXTS)
def inputs(request, clf):
    return clf.encode(request.param)


@pytest.fixture
def logit(clf, inputs):
    """The predicted class's logit of any keyword arguments of the model."""
    target = int(clf.model(**inputs.model_kwargs()).logits.argmax())
    return lambda **given: clf.model(**given).logits[:, target]


@pytest.mark.parametrize("removal", ["attention-mask", "mask", "pad", "unk", "zero"])
@torch.inference_mode()
def test_captum_ablates_as_leave_one_out_removes(clf, inputs, logit, removal):
    ids, mask = inputs.input_ids, inputs.attention_mask
    if removal == "attention-mask":
        ablation = FeatureAblation(lambda seen: logit(input_ids=ids, attention_mask=seen))
        found = ablation.attribute(mask, baselines=0)
    elif removal == "zero":
        words = clf.model.get_input_embeddings()(ids)
        tokens = torch.arange(ids.shape[1])[None, :, None].expand_as(words)
        ablation = FeatureAblation(lambda x: logit(inputs_embeds=x, attention_mask=mask))
        found = ablation.attribute(words, feature_mask=tokens)[..., 0]
    else:
        ablation = FeatureAblation(lambda x: logit(input_ids=x, attention_mask=mask))
        found = ablation.attribute(ids, baselines=inputs.replacements[removal])
    ours = lrp.leave_one_out(clf, inputs, removal=removal)
    torch.testing.assert_close(found.to(ours), ours, rtol=0, atol=5e-6)


@pytest.mark.parametrize("baseline", ["pad", "mask"])
def test_captum_integrates_the_same_gradients(clf, inputs, logit, baseline):
    ids = inputs.input_ids
    start = torch.full_like(ids, inputs.replacements[baseline])
    start = torch.where(inputs.content_mask, start, ids)  # special tokens stay, as in ours
    layer = LayerIntegratedGradients(
        lambda x: logit(input_ids=x, attention_mask=torch.ones_like(x)),
        clf.model.get_input_embeddings(),
    )
    found = layer.attribute(ids, baselines=start, n_steps=32, method="riemann_middle").sum(-1)
    ours = lrp.attribute(clf, inputs, "ig", baseline=baseline, steps=32)
    torch.testing.assert_close(found.float(), ours, rtol=0, atol=5e-6)


@pytest.mark.parametrize("units", ["token", "word"])
def test_interpreto_s_occlusion_is_leave_one_out_by_mask(clf, inputs, units):
    text = next(one for one in TEXTS if clf.encode(one).tokens == inputs.tokens)
    target = clf.model(**inputs.model_kwargs()).logits.argmax(1, keepdim=True)
    occlusion = Occlusion(clf.model, clf.tokenizer, granularity=Granularity(units))
    (found,) = occlusion.explain([text], targets=target)
    ours = lrp.leave_one_out(clf, inputs, units=units, removal="mask")
    ours = ours[inputs.units(units).mask]
    torch.testing.assert_close(found.attributions[0].to(ours), ours, rtol=0, atol=5e-6)


def test_lxt_s_explicit_rules_on_bert(clf, inputs):
    found = sides.explicit_attnlrp(clf, inputs)
    ours = lrp.attribute(clf, inputs, "attnlrp")[inputs.valid_mask]
    torch.testing.assert_close(found, ours, rtol=0, atol=1e-3 * float(ours.abs().max()))


def test_lxt_s_explicit_rules_on_llama():
    """The model written out of LXT's operations; keys and values without groups."""
    model = tiny.build("llama", num_key_value_heads=4)
    inputs = tiny.texts((6,))
    body, heads = model.model, model.config.num_attention_heads
    tokens = inputs["input_ids"].shape[1]
    words = body.embed_tokens(inputs["input_ids"]).requires_grad_()
    cos, sin = body.rotary_emb(words, torch.arange(tokens)[None])
    causal = torch.ones(tokens, tokens).tril().log()

    def norm(module, x):
        return rules.rms_norm_identity(x, module.weight, module.variance_epsilon)

    def linear(module, x):
        return rules.linear_epsilon(x, module.weight, module.bias, 1e-12)

    def split(x):
        return x.view(1, tokens, heads, -1).transpose(1, 2)

    def rotate(x):
        half = x.shape[-1] // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    x = words
    for layer in body.layers:
        own, inner = layer.self_attn, norm(layer.input_layernorm, x)
        both = (split(linear(module, inner)) for module in (own.q_proj, own.k_proj))
        query, key = (epsilon_lrp(rotate, 1e-12, each) for each in both)
        scores = rules.matmul(query, key.transpose(2, 3), epsilon=1e-12) + causal
        weights = rules.softmax(scores, -1, temperature=1 / own.scaling)
        mixed = rules.matmul(weights, split(linear(own.v_proj, inner)), epsilon=1e-12)
        mixed = linear(own.o_proj, mixed.transpose(1, 2).reshape(1, tokens, -1))
        x = rules.add2(x, mixed, epsilon=1e-12)
        inner = norm(layer.post_attention_layernorm, x)
        gate = identity(torch.nn.functional.silu, linear(layer.mlp.gate_proj, inner))
        gated = rules.mul2(gate, linear(layer.mlp.up_proj, inner))
        x = rules.add2(x, linear(layer.mlp.down_proj, gated), epsilon=1e-12)
    logits = linear(model.score, norm(body.norm, x))[0, -1]
    (relevance,) = torch.autograd.grad(logits.max(), words, logits.max().detach())
    ours = lrp.attribute(model, inputs, "attnlrp")
    torch.testing.assert_close(relevance.sum(-1).float(), ours, rtol=0, atol=1e-5)
