"""Other libraries as judges: `make peers` installs them and fails where they do not agree.

captum, interpreto, inseq and ContextCite remove tokens, captum integrates gradients, LXT and zennit
have explicit rules. `make test` collects no part of this file: these libraries are no part of the
pinned environment.
"""

import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from captum.attr import FeatureAblation, LayerIntegratedGradients
from lxt.explicit import functional as rules
from lxt.explicit.rules import epsilon_lrp, identity
from torch import Tensor, nn
from zennit.composites import LayerMapComposite
from zennit.rules import Epsilon, Pass

import lrputils as lrp
from lrputils.model.forwards import replaced
from lrputils.removal.coalitions import Coalitions
from tests import tiny
from tests.peers import others

# isort: split
import inseq  # like all that follows it imports transformers, for which lrputils makes room
from context_cite import ContextCiter
from context_cite.solver import LassoRegression
from interpreto import Granularity, Occlusion
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEXTS = ["a film that is never dull", "an unwatchable film, dreck"]
HOW = ("delete", "attention-mask")
CONTEXT, QUERY = "w11 w12 w13 w14 w15 w16", "w17 w18"


def apart(found: Tensor, ours: Tensor) -> float:
    """The largest difference."""
    return float((found.to(ours) - ours).abs().max())


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


@pytest.fixture(params=["gpt2-lm", "llama-lm"])
def reader(request):
    """A random model of the next word, with a tokenizer of its 40 words."""
    names = {f"w{number:02}": number for number in range(tiny.VOCABULARY)}
    words = Tokenizer(models.WordLevel(names, unk_token="w00"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"unk_token": "w00", "pad_token": "w01", "eos_token": "w03"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **special)
    tokenizer.chat_template = "{{ messages[0].content }}"
    return lrp.load_classifier(tiny.build(request.param), tokenizer)


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


@pytest.mark.parametrize("output", ["logit", "probability"])
def test_inseq_s_occlusion_is_leave_one_out_by_the_unknown_token(reader, output):
    inputs = reader.encode(CONTEXT)
    target = int(reader.model(**inputs.model_kwargs()).logits[0, -1].argmax())
    occlusion = inseq.load_model(reader.model, "occlusion", tokenizer=reader.tokenizer)
    options = {"attributed_fn": output, "show_progress": False}
    (found,) = occlusion.attribute(CONTEXT, f"{CONTEXT} w{target:02}", **options)
    found = found.target_attributions[:-1, 0]  # the last is the next word's own

    def ours(removal):
        options = {"target": target, "removal": removal, "output": output}
        return lrp.leave_one_out(reader, inputs, **options)[0].abs()

    assert apart(found, ours("unk")) < 5e-6
    assert apart(found, ours("zero")) > 1e-3


class Kept(LassoRegression):
    """ContextCite's own fit, which keeps what it is given."""

    def fit(self, masks, outputs, num_output_tokens):
        self.masks, self.outputs = masks, torch.tensor(outputs)
        return super().fit(masks, outputs, num_output_tokens)


@pytest.mark.filterwarnings("ignore:.*autocast", "ignore:.*CUDA")
def test_contextcite_deletes_words_and_reads_log_odds(reader):
    solver = Kept()
    citer = ContextCiter(
        reader.model,
        reader.tokenizer,
        CONTEXT,
        QUERY,
        source_type="word",
        generate_kwargs={"max_new_tokens": 1, "do_sample": False},
        solver=solver,
        prompt_template="{context} {query}",
    )
    citer.get_attributions()
    inputs = reader.encode(f"{CONTEXT} {QUERY}")
    target = reader.tokenizer.convert_tokens_to_ids(citer.response.strip())
    words = [word.span() for word in re.finditer(r"\S+", CONTEXT)]
    removed = [np.flatnonzero(~kept) for kept in solver.masks]

    def ours(removal):
        options = {"target": target, "units": [words], "output": "probability"}
        f = Coalitions(reader.architecture, inputs, **options)
        return f.values([removed], "sets", removal=removal)[0].logit()

    assert apart(solver.outputs, ours("delete")) < 5e-6
    assert apart(solver.outputs, ours("unk")) > 1e-3


def test_lxt_s_explicit_rules_on_bert(clf, inputs):
    found = others.explicit_attnlrp(clf, inputs)
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


def test_lxt_s_rules_on_gemma3(monkeypatch):
    """Its patches of norms, gated products and attention; its logit is read at the last token."""
    stub = SimpleNamespace(modeling_bert=object(), attnLRP={})  # does not import beside 5
    monkeypatch.setitem(sys.modules, "lxt.efficient.models.bert", stub)
    gemma = importlib.import_module("lxt.efficient.models.gemma3")
    patches = importlib.import_module("lxt.efficient.patches")
    model, inputs = tiny.build("gemma3-lm", dtype=torch.float32), tiny.texts((9,))
    ours = {name: lrp.attribute(model, inputs, name, target=7) for name in ("attnlrp", "cp-lrp")}
    modeling = sys.modules[type(model).__module__]
    attention = patches.wrap_attention_forward(modeling.eager_attention_forward)
    model.set_attn_implementation("eager")
    monkeypatch.setattr(modeling, "eager_attention_forward", attention)
    monkeypatch.setattr(modeling.Gemma3RMSNorm, "_norm", gemma.gemma3_norm)
    monkeypatch.setattr(modeling.Gemma3MLP, "forward", patches.gated_mlp_forward)
    words = model.get_input_embeddings()(inputs["input_ids"]).requires_grad_()
    logit = model(inputs_embeds=words, use_cache=False).logits[0, -1, 7]
    (gradient,) = torch.autograd.grad(logit, words)
    found = (words * gradient).sum(-1).detach()
    size = float(ours["attnlrp"].abs().max())
    assert apart(found, ours["attnlrp"]) < 1e-4 * size
    assert apart(found, ours["cp-lrp"]) > 1e-2 * size


@pytest.mark.parametrize("units", ["word", "sentence"])
def test_captum_s_llm_attribution_deletes_units_of_the_prompt(units):
    """One pass a unit; token by token, its default, goes wrong beside transformers 5."""
    lm = others.reader()
    text = lm.encode("w0011 w0012 w0013. w0014 w0015 w0016. w0017", answer=" w0018 w0019 w0020")
    found = others.captum_answer(lm, text, units)
    where = text.units(units).mask
    ours = {how: lrp.leave_one_out(lm, text, units=units, removal=how)[where] for how in HOW}
    assert apart(found, ours["delete"]) < 1e-4 * float(found.abs().max())
    assert apart(found, ours["attention-mask"]) > 1e-3 * float(found.abs().max())


def test_zennit_s_epsilon_rule_on_bert_s_linear_layers():
    """A feed-forward part and the head: zennit has no rule for attention."""
    model = tiny.build("bert")
    block, pooler = model.bert.encoder.layer[0], model.bert.pooler
    gelu, tanh = block.intermediate.intermediate_act_fn, pooler.activation
    feed_forward = block.intermediate.dense, gelu, block.output.dense
    layers = nn.Sequential(*feed_forward, pooler.dense, tanh, model.classifier)
    x = torch.randn(5, 16, dtype=torch.float64).requires_grad_()
    alone = {model: lambda _, states: layers(states)}  # rules act inside of the model
    lrp.attribute(model, tiny.texts((3,)), "attnlrp")  # the whole model is proved before
    with replaced(alone), lrp.propagating(model, lrp.ATTN_LRP):
        (gradient,) = torch.autograd.grad(model(x).amax(1).sum(), x)
    ours = x.detach() * gradient

    def theirs(epsilon):
        explicit = [(nn.Linear, Epsilon(epsilon)), ((type(gelu), type(tanh)), Pass())]
        with LayerMapComposite(explicit).context(layers):
            logits = layers(x).amax(1)
            return torch.autograd.grad(logits, x, logits.detach())[0]

    assert apart(theirs(0.0), ours) < 1e-12
    assert apart(theirs(1e-3), ours) > 1e-3


def test_the_file_of_peers_names_these_versions():
    here = Path(__file__).parent
    names = (here / "../../results/peers.csv").read_text(encoding="utf-8").lower()
    for pin in (here / "requirements.txt").read_text().splitlines()[1:]:
        assert f"\n{pin.replace('-', '').replace('==', ' ')}," in names


# The pages' own calls, from other tools' maps to the audit's verdict.
_BLOCK = re.compile(r"^```python\n((?:from captum|import shap|import inseq).*?)^```", re.M | re.S)
_CHAPTERS = Path(__file__).parents[2] / "chapters"
_PAGES = "".join((_CHAPTERS / f"{page}.md").read_text("utf-8") for page in ("quickstart", "api"))
_CALLS = dict(zip(("shap", "captum", "inseq"), _BLOCK.findall(_PAGES), strict=True))


@pytest.mark.parametrize("tool", _CALLS)
@pytest.mark.filterwarnings("ignore")
def test_the_pages_calls_bring_a_tool_s_maps_to_a_verdict(clf, tool, capsys):
    lm = others.reader()
    texts = ["w0011 w0012 w0013", "w0014 w0015"] if tool == "inseq" else lrp.load_texts(TEXTS)
    given = {"lrp": lrp, "clf": clf, "lm": lm, "texts": texts}
    exec(_CALLS[tool], given)
    assert tool in capsys.readouterr().out


def test_lxt_s_maps_are_judged_as_ours_are(clf):
    maps = [others.explicit_attnlrp(clf, clf.encode(text)) for text in TEXTS]
    found = lrp.evaluate(clf, TEXTS, ["attnlrp"], scores={"LXT": maps}, progress=False)
    r = found.per_text("r_content")
    np.testing.assert_allclose(r["LXT"], r["attnlrp"], atol=1e-3)


def test_captum_s_occlusion_is_found_to_be_leave_one_out(clf):
    maps = []
    for text in TEXTS:
        one = clf.encode(text)

        def logits(seen, ids=one.input_ids):
            return clf.model(ids, attention_mask=seen).logits

        target = int(logits(one.attention_mask).argmax())
        maps.append(FeatureAblation(logits).attribute(one.attention_mask, 0, target)[0])
    found = lrp.evaluate(clf, TEXTS, [], scores={"captum": maps}, progress=False)
    np.testing.assert_allclose(found.per_text("r").captum, 1, atol=1e-6)
