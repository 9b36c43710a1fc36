"""Odd models × verbs: an answer is plain torch's, text by text, or there is one sentence."""

import copy

import pytest
import torch
from torch import nn

import lrputils as lrp  # before transformers, which it keeps importable
from experiments.families import logits_of, plain_loo
from lrputils.model.architectures import WITHOUT_RULES
from lrputils.model.proof import _Measurement
from tests.tiny import made, of_own_class

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
    pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated"),
    pytest.mark.filterwarnings("ignore:quantized..linear_dynamic"),
]
PAD, FIRST, LAST, UNK = 0, 2, 3, 5
_SIZES = {
    "vocab_size": 60,
    "num_labels": 3,
    "initializer_range": 0.3,
    "pad_token_id": PAD,
    "bos_token_id": FIRST,
    "eos_token_id": LAST,
}
_BERT = _SIZES | {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}
_LLAMA = _BERT | {"num_key_value_heads": 2, "head_dim": 8}
_OPT = _BERT | {"ffn_dim": 32, "word_embed_proj_dim": 32, "init_std": 0.3}
_CTRL = _SIZES | {"n_embd": 32, "dff": 32, "n_layer": 2, "n_head": 4}
_XLNET = _SIZES | {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 32}
_MODERN = _BERT | {"global_attn_every_n_layers": 2, "local_attention": 4, "cls_token_id": FIRST}
_MODERN |= {"sep_token_id": LAST, "initializer_cutoff_factor": 3.0}
_DEBERTA = _BERT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
_DEBERTA |= {"type_vocab_size": 2, "position_buckets": 8}
_DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
_QUANTISED = {"dtype": torch.qint8, "qconfig_spec": {nn.Linear}}


def hooked():
    """A pooler that adds the mean of the words that are seen, by a hook."""
    model, seen = made("Bert", **_BERT), {}
    model.register_forward_pre_hook(lambda _, __, given: seen.update(given), with_kwargs=True)

    def _add(_, states, pooled):
        mask = seen["attention_mask"][..., None].float()
        return pooled + (states[0] * mask).sum(1) / mask.sum(1)

    model.bert.pooler.register_forward_hook(_add)
    return model


def captured():
    """As transformers leaves a model whose hidden states were asked for: with hooks of its own."""
    model = made("Bert", **_BERT)
    model(torch.tensor([[FIRST, 11, LAST]]), output_hidden_states=True)
    return model


def partly(model, part: str):
    """A model of which one part is in training mode."""
    model.get_submodule(part).train()
    return model


def offloaded():
    model = made("Bert", **_BERT)
    model.bert.encoder.to("meta")
    return model


def inferring():
    with torch.inference_mode():
        return made("Bert", **_BERT)


def never_trained():
    model = made("Bert", **_BERT)
    model.get_input_embeddings().weight[PAD] = torch.nan
    return model


def with_prompt():
    adapter = type("PromptEmbedding", (nn.Module,), {"__module__": "peft.tuners.prompt_tuning"})
    wrapper = type("PeftModel", (nn.Module,), {"__module__": "peft.peft_model"})()
    wrapper.base_model, wrapper.prompt_encoder = made("Bert", **_BERT), adapter()
    return wrapper


def eager(model):
    model.set_attn_implementation("eager")
    return model


def dynamic(name: str, positions: int):
    return made(name, **_LLAMA | {"max_position_embeddings": positions}, rope_parameters=_DYNAMIC)


MODELS = {
    "OPT": lambda: made("OPT", **_OPT),
    "BLOOM": lambda: made("Bloom", **_SIZES, hidden_size=32, n_layer=2, n_head=4),
    "Falcon": lambda: made("Falcon", **_BERT | {"alibi": True}),
    "Camembert": lambda: made("Camembert", **_BERT),
    "CTRL": lambda: made("CTRL", **_CTRL),
    "XLNet": lambda: made("XLNet", **_XLNET),
    "FNet": lambda: made("FNet", **_BERT),
    "ConvBERT": lambda: made("ConvBert", **_BERT, embedding_size=32),
    "Longformer": lambda: made("Longformer", **_BERT, attention_window=4),
    "I-BERT": lambda: made("IBert", **_BERT),
    "BigBird": lambda: made("BigBird", **_BERT),
    "BigBird, all": lambda: made("BigBird", **_BERT, attention_type="original_full"),
    "T5": lambda: made(
        "T5",
        **_SIZES,
        d_model=32,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=PAD,
        initializer_factor=8.0,
    ),
    "RWKV": lambda: made("Rwkv", "ForCausalLM", vocab_size=60, hidden_size=32, num_hidden_layers=2),
    "Phi-3, no padding": lambda: made("Phi3", **_LLAMA | {"pad_token_id": None}),
    "ModernBERT decoder": lambda: made("ModernBertDecoder", **_LLAMA, local_attention=4),
    "int8": lambda: torch.ao.quantization.quantize_dynamic(made("Bert", **_BERT), **_QUANTISED),
    "MPNet": lambda: made("MPNet", **_BERT),
    "DeBERTa": lambda: made("DebertaV2", **_DEBERTA),
    "ModernBERT": lambda: made("ModernBert", **_MODERN),
    "ModernBERT, mean": lambda: made("ModernBert", **_MODERN, classifier_pooling="mean"),
    "Gemma 2": lambda: made("Gemma2", **_LLAMA, sliding_window=4),
    "Gemma 2, next token": lambda: made("Gemma2", "ForCausalLM", **_LLAMA, sliding_window=4),
    "Gemma, eager": lambda: eager(made("Gemma", **_LLAMA)),
    "Gemma, dynamic": lambda: dynamic("Gemma", 16),
    "Llama, eager": lambda: eager(made("Llama", **_LLAMA)),
    "Llama, dynamic": lambda: dynamic("Llama", 8),
    "hook": hooked,
    "captured": captured,
    "dropout": lambda: partly(made("Bert", **_BERT), "bert.encoder.layer.1.attention.self.dropout"),
    "meta": lambda: made("OPT", **_OPT).to("meta"),
    "masked words": lambda: made("Bert", "ForMaskedLM", **_BERT),
    "no head": lambda: made("Bert", "Model", **_BERT),
    "tokens": lambda: made("Bert", "ForTokenClassification", **_BERT),
    "answers": lambda: made("Bert", "ForQuestionAnswering", **_BERT),
    "characters": lambda: made("Canine", **_BERT),
    "prompt": with_prompt,
    "own class": lambda: of_own_class(**_BERT),
    "own class, causal": lambda: of_own_class(causal=True, **_BERT),
    "offloaded": offloaded,
    "inference": inferring,
    "never trained": never_trained,
    "tuples": lambda: made("Bert", **_BERT, return_dict=False),
    "no transformer": lambda: nn.TransformerEncoderLayer(32, 4, 64),
}


def batch(*texts, special: bool = True):
    """Texts padded on the right, of inner tokens between two special ones, if they have any."""
    rows = [
        [FIRST, *text, LAST] if special else [*text] for text in texts or (range(11, 17), (21,))
    ]
    width = max(map(len, rows))
    apart = [[*([0] * len(row)), *([1] * (width - len(row)))] for row in rows]
    for row, own in zip(rows, apart, strict=True):
        own[0] = own[len(row) - 1] = int(special)
    return lrp.Inputs(
        {
            "input_ids": [row + [PAD] * (width - len(row)) for row in rows],
            "attention_mask": [[1] * len(row) + [0] * (width - len(row)) for row in rows],
            "special_tokens_mask": apart,
        },
        replacements={"unk": UNK, "pad": PAD},
    )


def gradients_by_hand(model, inputs):
    """Gradient × input of each text alone, where the model looks its words up."""
    scores = torch.zeros(inputs["input_ids"].shape)
    for row, length in enumerate(inputs.lengths.tolist()):
        words = []

        def _leaf(_, __, output, words=words):
            words.append(output.detach().requires_grad_())
            return words[0].clone()

        taken = model.get_input_embeddings().register_forward_hook(_leaf)
        whole = logits_of(model, inputs["input_ids"][row, :length])
        taken.remove()
        (gradient,) = torch.autograd.grad(whole.max(), words[0])
        scores[row, :length] = (gradient * words[0]).sum(-1).detach()[0, :length]
    return scores


# No rule covers these; their special tokens are removed, too.
PLAIN = ("ModernBERT", "ModernBERT, mean", "DeBERTa", "Gemma 2", "Gemma 2, next token")
# Model, removal → where its positions count from, if they are passed; or the sentence.
LOO = [
    ("OPT", "attention-mask", 0),
    ("OPT", "delete", None),
    ("Camembert", "attention-mask", 1),
    ("Camembert", "pad", 1),
    ("CTRL", "attention-mask", 0),
    ("XLNet", "attention-mask", None),
    ("XLNet", "unk", None),
    ("Longformer", "attention-mask", None),
    ("BigBird, all", "attention-mask", 0),
    ("ModernBERT decoder", "unk", 0),
    *((name, how, None) for name in PLAIN for how in ("attention-mask", "delete", "unk")),
    ("Gemma, dynamic", "attention-mask", 0),
    ("Llama, dynamic", "attention-mask", 0),
    ("hook", "attention-mask", None),
    ("captured", "attention-mask", None),
    ("own class", "attention-mask", None),
    ("own class, causal", "attention-mask", None),
    ("inference", "attention-mask", None),
    ("never trained", "attention-mask", None),
    *(
        (name, "delete", None)
        for name in ("BLOOM", "Falcon", "FNet", "ConvBERT", "RWKV", "int8", "T5")
    ),
    *((name, "unk", None) for name in ("BLOOM", "Falcon", "FNet", "int8")),
    ("Phi-3, no padding", "attention-mask", "has none: set model.config.pad_token_id"),
    ("BLOOM", "attention-mask", "counts positions by its attention mask.* removal='delete'"),
    ("Falcon", "attention-mask", "counts positions by its attention mask.* removal='delete'"),
    *(
        (name, "attention-mask", "reads what its attention mask hides.* removal='delete'")
        for name in ("FNet", "ConvBERT", "T5", "RWKV", "int8")
    ),
    ("T5", "zero", "reads its words twice: removal='zero'"),
    ("BigBird", "delete", "changes when it runs: .* attention_type='original_full'"),
    ("dropout", "unk", r"'bert\.encoder.*dropout' of Bert.* is in training mode"),
    ("meta", "unk", "weights of OPTForSequenceClassification are on meta, where meta is a device"),
    (
        "offloaded",
        "unk",
        "weights of BertForSequenceClassification are on cpu, meta, .* left on the disk",
    ),
    ("tuples", "unk", r"returns tuples: set model\.config\.return_dict = True"),
    ("no transformer", "unk", "is not a transformers model: pass that which it wraps, or derive"),
    ("masked words", "unk", "fills in masked words, and gives a text no class"),
    ("no head", "unk", "has no head, and gives a text no class to explain"),
    ("tokens", "unk", "labels each token, and gives a text no class"),
    ("answers", "unk", "marks the answer in a text, and gives a text no class"),
    ("characters", "unk", "reads characters and has no embeddings of tokens"),
    ("prompt", "unk", "has an adapter at .*: its vectors stand among the words"),
]


@pytest.mark.parametrize(("name", "removal", "expected"), LOO)
def test_loo(name, removal, expected):
    # Of eight tokens, the length that a dynamic position table was made for.
    model, inputs = MODELS[name](), batch()
    plain = copy.deepcopy(model) if name != "RWKV" else model
    if isinstance(expected, str):
        for _ in range(2):  # again, as it was
            with pytest.raises((ValueError, TypeError), match=expected) as caught:
                lrp.leave_one_out(model, inputs, removal=removal)
            assert "\n" not in str(caught.value)
        return
    scores = lrp.leave_one_out(model, inputs, removal=removal)
    inside = inputs.valid_mask if name in PLAIN else inputs.content_mask
    by_hand = plain_loo(plain, inputs, removal, expected, inside)
    assert by_hand.abs().max() > 1e-3
    torch.testing.assert_close(scores[inside], by_hand[inside], atol=2e-5, rtol=1e-4)
    if name == "T5":  # its answer is read at the end, which stays
        assert max(scores[0, 7].abs(), scores[1, 2].abs()) < 2e-5


@pytest.mark.parametrize(("removal", "texts"), [("pad", (11, 12)), ("delete", (11, PAD, 12))])
def test_a_decoder_reads_no_other_token_where_a_text_comes_to_end_in_padding(removal, texts):
    inputs = batch(texts, special=False)
    with pytest.raises(ValueError, match=f"CTRL.* takes token {PAD}, at which .* for padding"):
        lrp.leave_one_out(MODELS["CTRL"](), inputs, removal=removal)
    # Where its head is seen to read the last token's state it is applied to that.
    for model in (MODELS["OPT"](), MODELS["Llama, eager"]()):
        scores = lrp.leave_one_out(model, inputs, removal=removal)[0]
        ids = inputs["input_ids"][:, :-1] if removal == "delete" else torch.tensor([[11, PAD]])
        with torch.no_grad():
            whole = model(**inputs.model_kwargs()).logits[0]
            left = model.score(model.model(input_ids=ids)[0][:, -1])[0]
        expected = (whole - left)[whole.argmax()]
        torch.testing.assert_close(scores[-1], expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", PLAIN)
def test_the_other_verbs(name):
    model, inputs = MODELS[name](), batch()
    loo = lrp.leave_one_out(model, inputs)
    close = {"atol": 2e-5, "rtol": 1e-4}
    torch.testing.assert_close(lrp.leave_two_out(model, inputs).loo, loo, **close)
    shapley = lrp.shapley_values(model, inputs, permutations="all")
    torch.testing.assert_close(shapley.scores.sum(1), shapley.change, **close)
    curves = lrp.perturbation_curves(model, inputs, loo)
    torch.testing.assert_close(curves.morf[0, 0] - curves.morf[0, 6], shapley.change[0], **close)
    for options in (
        {"method": "ig", "baseline": 30},
        {"method": "grad-x-input"},
        {"method": "loo", "removal": "zero"},
    ):
        assert lrp.attribute(model, inputs, **options).isfinite().all()


def test_what_needs_rules_is_refused_by_name():
    model, inputs = MODELS["BLOOM"](), batch()
    free = [name for name, method in lrp.METHODS.items() if not method.rules]
    assert all(f"'{name}'" in WITHOUT_RULES for name in free)
    for name in ("attnlrp", "cp-lrp", "mask-gradient", "rollout", "attention-x-grad"):
        with pytest.raises(TypeError, match=r"Bloom.*What needs no rules"):
            lrp.attribute(model, inputs, name)


@pytest.mark.parametrize("name", ["ModernBERT", "OPT", "Camembert", "captured"])
def test_a_model_of_no_family_has_every_method(name):
    model, inputs = MODELS[name](), batch()
    for method in lrp.METHODS:
        assert lrp.attribute(model, inputs, method).isfinite().all()
    report = lrp.check(model, inputs.rows([0]))
    assert report.passed
    assert "attention: attention" in str(report)


GRADIENTS = {
    "OPT": "",
    "BLOOM": "",
    "FNet": "",
    "ConvBERT": "",
    "CTRL": "",
    "Camembert": "",
    "Longformer": "",
    "hook": "",
    "XLNet": r"embeds words as \(8, 1\) where texts are \(1, 8\)",
    "I-BERT": "word embeddings of IBert.* are more than a tensor",
    "int8": "passes no gradient back to its words",
    "BigBird": "changes when it runs",
    "inference": "was made under torch.inference_mode, and no gradient passes it",
    "never trained": "",
}


def test_words_of_another_layout_are_not_set_to_zero():
    with pytest.raises(ValueError, match=r"XLNet.*and not as \(batch, tokens\).*removal='delete'"):
        lrp.leave_one_out(MODELS["XLNet"](), batch(), removal="zero")


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_a_padded_batch(name):
    model, inputs = MODELS[name](), batch()
    if GRADIENTS[name]:
        with pytest.raises(ValueError, match=GRADIENTS[name]):
            lrp.attribute(model, inputs, "grad-x-input")
        return
    expected = gradients_by_hand(copy.deepcopy(model), inputs)
    scores = lrp.attribute(model, inputs, "grad-x-input")
    torch.testing.assert_close(scores, expected, atol=2e-5, rtol=1e-4)
    one, both = inputs.rows([1]), lrp.attribute(model, inputs, "ig", baseline=UNK, target=[2, 1])
    if name == "Longformer":  # it fills a text up to whole windows
        with pytest.raises(ValueError, match=r"embeds words as \(1, 4\) where texts are \(1, 3\)"):
            lrp.attribute(model, one, "grad-x-input")
        return
    alone = lrp.attribute(model, one, "ig", baseline=UNK, target=1)
    torch.testing.assert_close(both[1:, :3], alone, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("OPT", ""),
        ("Camembert", ""),
        ("Llama, eager", ""),
        ("Gemma, eager", ""),
        ("MPNet", "reads hidden words where nothing else is left .*implementation.'sdpa'"),
        ("DeBERTa", ""),
    ],
)
def test_a_text_of_which_nothing_is_left(name, sentence):
    model, inputs = MODELS[name](), batch(range(11, 15), (21, 22), special=False)
    if sentence:
        with pytest.raises(ValueError, match=sentence):
            lrp.shapley_values(model, inputs, permutations="all")
        return
    both = lrp.shapley_values(model, inputs, permutations="all").scores[1, :2]
    alone = lrp.shapley_values(model, inputs.rows([1]), permutations="all").scores[0]
    torch.testing.assert_close(both, alone, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["Llama, dynamic", "Gemma, dynamic"])
def test_positions_that_depend_on_the_longest_text(name):
    model = MODELS[name]()
    long = batch(range(8, 8 + model.config.max_position_embeddings))
    for explain in (lrp.leave_one_out, lambda *a: lrp.attribute(*a, "grad-x-input")):
        with pytest.raises(ValueError, match=r"has (8|16) positions"):
            explain(model, long)
    assert lrp.leave_one_out(model, batch()).any()


def test_a_model_is_measured_once(monkeypatch):
    taken, run = [], _Measurement.run
    monkeypatch.setattr(
        _Measurement, "run", lambda self, *rows: taken.append(rows) or run(self, *rows)
    )
    model, inputs = MODELS["OPT"](), batch()
    lrp.leave_one_out(model, inputs)
    assert 16 < len(taken) < 20
    for removal in ("unk", "delete", "attention-mask"):
        lrp.leave_one_out(model, inputs.rows([1]), removal=removal)
    assert len(taken) < 20
    # A longer text is looked at, and measured where its tokens see a window of it alone.
    for name, passes in (("OPT", 2), ("Gemma 2", 15)):
        model = MODELS[name]()
        lrp.leave_one_out(model, inputs)
        taken.clear()
        lrp.leave_one_out(model, batch([*range(11, 31)] * 2))
        assert passes <= len(taken) < passes + 5
