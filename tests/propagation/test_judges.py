"""Families that a model's own code makes hard, held against their published equations.

Each is written out once more in plain torch on the model's weights, in float64: an explicit forward
pass in which a rule is a factor that gets no gradient. Relevance is then gradient × input at the
words. The logits of that pass have to be the model's, so that the equations are those of the
network, and its maps the package's, under AttnLRP and under CP-LRP.

Sources: Achtibat et al. (2024) for halved products, the softmax, units and norms; Ali et al. (2022)
for constant attention weights. A gate is held, and so is a router, under CP-LRP.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, linear, one_hot, relu, silu, softmax

import lrputils as lrp
from tests import tiny

IDS = torch.tensor([[2, 11, 12, 13, 14, 12, 16, 3]])
N, HEADS, WIDTH = IDS.shape[1], 4, 32
SIZE = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}
SIZE |= {"vocab_size": 40, "intermediate_size": 48, "max_position_embeddings": 64}
SIZE |= {"initializer_range": 0.3, "pad_token_id": 0, "num_labels": 3}
GROUPED = SIZE | {"num_key_value_heads": 2, "head_dim": 8, "bos_token_id": 2, "eos_token_id": 3}


class Rules:
    """The rules of AttnLRP or, with `cp`, of CP-LRP, as factors that get no gradient.

    One token may be hidden by a degree: all other queries give so much of their output without it.
    """

    def __init__(self, cp=False, token=0, degree=0.0):
        self.cp = cp
        self.token, self.degree = token, degree

    def product(self, held, passed, multiply=torch.mul):
        """Halved; under CP-LRP all of it goes through the second factor."""
        through = multiply(held.detach(), passed)
        return through if self.cp else (through + multiply(held, passed.detach())) / 2

    @staticmethod
    def unit(function, x):
        """The identity rule."""
        return x * (function(x) / x).detach()

    @staticmethod
    def norm(x, module):
        """The deviation is a constant; an RMS norm has no bias, and Gemma's counts from one."""
        eps = getattr(module, "eps", None) or module.variance_epsilon
        if isinstance(module, nn.LayerNorm):
            x = x - x.mean(-1, keepdim=True)
        weight = module.weight + ("Gemma" in type(module).__name__)
        bias = getattr(module, "bias", None)
        scaled = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt().detach() * weight
        return scaled if bias is None else scaled + bias

    def attention(self, query, key, value, seen, scale, *, cap=None, bias=0):
        """Of heads (heads, tokens, width), keys shared by groups of queries."""
        key, value = (x.repeat_interleave(len(query) // len(x), 0) for x in (key, value))
        scores = self.product(query, key.mT, torch.matmul) * scale + bias
        if cap:
            scores = cap * self.unit(torch.tanh, scores / cap)
        weights = softmax(scores.masked_fill(~seen, -math.inf), -1)
        if self.degree:
            others = seen & (torch.arange(N) != self.token)
            others[self.token] = seen[self.token]  # no one reads what its own query gathers
            without = softmax(scores.masked_fill(~others, -math.inf), -1)
            weights = weights.lerp(without, self.degree)
        return joined(self.product(weights, value, torch.matmul))

    def gated(self, states, gate, up, down, act):
        """Of a gated unit, its three maps given."""
        return down(self.product(self.unit(act, gate(states)), up(states)))


def heads(states, number=HEADS):
    return states.view(N, number, -1).transpose(0, 1)


def joined(states):
    return states.transpose(0, 1).reshape(N, -1)


def rotated(states, base=10_000.0, width=None):
    """Rotary positions, of the first entries of a head where it says how many."""
    width = width or states.shape[-1]
    turned, rest = states[..., :width], states[..., width:]
    angles = torch.arange(N)[:, None] / base ** (torch.arange(0, width, 2) / width)
    cos, sin = (f(torch.cat([angles, angles], -1).double()) for f in (torch.cos, torch.sin))
    left, right = turned.chunk(2, -1)
    return torch.cat([turned * cos + torch.cat([-right, left], -1) * sin, rest], -1)


CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()
EVERY = torch.ones_like(CAUSAL)
APART = (torch.arange(N)[:, None] - torch.arange(N)).abs()


def gemma2(m, x, rules):
    x = x * WIDTH**0.5
    for number, layer in enumerate(m.model.layers):
        a, f = layer.self_attn, layer.mlp
        h = rules.norm(x, layer.input_layernorm)
        query, key = rotated(heads(a.q_proj(h))), rotated(heads(a.k_proj(h), 2))
        seen = CAUSAL & (APART < 4) if number % 2 == 0 else CAUSAL
        h = rules.attention(query, key, heads(a.v_proj(h), 2), seen, 256**-0.5, cap=50.0)
        x = x + rules.norm(a.o_proj(h), layer.post_attention_layernorm)
        h = rules.norm(x, layer.pre_feedforward_layernorm)
        h = rules.gated(
            h, f.gate_proj, f.up_proj, f.down_proj, lambda t: gelu(t, approximate="tanh")
        )
        x = x + rules.norm(h, layer.post_feedforward_layernorm)
    return m.score(rules.norm(x, m.model.norm))[-1]


def phi3(m, x, rules):
    for layer in m.model.layers:
        h = rules.norm(x, layer.input_layernorm)
        query, key, value = layer.self_attn.qkv_proj(h).split([32, 16, 16], -1)
        query, key = rotated(heads(query)), rotated(heads(key, 2))
        h = rules.attention(query, key, heads(value, 2), CAUSAL, 8**-0.5)
        x = x + layer.self_attn.o_proj(h)
        gate, up = layer.mlp.gate_up_proj(rules.norm(x, layer.post_attention_layernorm)).chunk(
            2, -1
        )
        x = x + layer.mlp.down_proj(rules.product(rules.unit(silu, gate), up))
    return m.score(rules.norm(x, m.model.norm))[-1]


def mixtral(m, x, rules):
    for layer in m.model.layers:
        a, experts = layer.self_attn, layer.mlp.experts
        h = rules.norm(x, layer.input_layernorm)
        query, key = (rotated(heads(p(h), k), 1e6) for p, k in ((a.q_proj, HEADS), (a.k_proj, 2)))
        h = rules.attention(query, key, heads(a.v_proj(h), 2), CAUSAL, 8**-0.5)
        x = x + a.o_proj(h)
        h = rules.norm(x, layer.post_attention_layernorm)
        shares = softmax(linear(h, layer.mlp.gate.weight), -1)
        chosen = one_hot(shares.topk(2, -1).indices, 3).sum(1) * shares
        shares = chosen / chosen.sum(-1, keepdim=True).detach()
        for number in range(3):
            gate, up = linear(h, experts.gate_up_proj[number]).chunk(2, -1)
            out = rules.product(rules.unit(silu, gate), up)
            out = linear(out, experts.down_proj[number])
            x = x + rules.product(shares[:, number, None], out)
    return m.score(rules.norm(x, m.model.norm))[-1]


def opt(m, x, rules):
    decoder = m.model.decoder
    x = x + decoder.embed_positions.weight[2 : 2 + N]
    for layer in decoder.layers:
        a, h = layer.self_attn, rules.norm(x, layer.self_attn_layer_norm)
        query, key, value = (heads(p(h)) for p in (a.q_proj, a.k_proj, a.v_proj))
        x = x + a.out_proj(rules.attention(query, key, value, CAUSAL, 8**-0.5))
        h = layer.fc1(rules.norm(x, layer.final_layer_norm))
        x = x + layer.fc2(rules.unit(relu, h))
    return m.score(rules.norm(x, decoder.final_layer_norm))[-1]


def gpt_neox(m, x, rules):
    for layer in m.gpt_neox.layers:
        h = layer.attention.query_key_value(rules.norm(x, layer.input_layernorm))
        query, key, value = heads(h).chunk(3, -1)
        query, key = rotated(query, width=2), rotated(key, width=2)
        h = rules.attention(query, key, value, CAUSAL, 8**-0.5)
        up = layer.mlp.dense_h_to_4h(rules.norm(x, layer.post_attention_layernorm))
        x = x + layer.attention.dense(h) + layer.mlp.dense_4h_to_h(rules.unit(gelu, up))
    return m.score(rules.norm(x, m.gpt_neox.final_layer_norm))[-1]


def modernbert(m, x, rules):
    x = rules.norm(x, m.model.embeddings.norm)
    for number, layer in enumerate(m.model.layers):
        h = x if number == 0 else rules.norm(x, layer.attn_norm)
        query, key, value = map(heads, layer.attn.Wqkv(h).chunk(3, -1))
        base, seen = (160_000.0, EVERY) if number == 0 else (10_000.0, APART <= 2)
        query, key = rotated(query, base), rotated(key, base)
        x = x + layer.attn.Wo(rules.attention(query, key, value, seen, 8**-0.5))
        gate, up = layer.mlp.Wi(rules.norm(x, layer.mlp_norm)).chunk(2, -1)
        x = x + layer.mlp.Wo(rules.product(rules.unit(gelu, gate), up))
    x = rules.unit(gelu, m.head.dense(rules.norm(x, m.model.final_norm)[0]))
    return m.classifier(rules.norm(x, m.head.norm))


def deberta(m, x, rules):
    x = rules.norm(x, m.deberta.embeddings.LayerNorm)
    places = m.deberta.encoder.rel_embeddings.weight
    distance = torch.arange(N)[:, None] - torch.arange(N) + 64
    for layer in m.deberta.encoder.layer:
        a = layer.attention.self
        query, key, value = (heads(p(x)) for p in (a.query_proj, a.key_proj, a.value_proj))
        of_keys, of_queries = (
            p(places).view(-1, HEADS, 8).transpose(0, 1) for p in (a.pos_key_proj, a.pos_query_proj)
        )
        # Content to position is linear in the text: query · a constant, and a constant · key.
        to_place = (query @ of_keys.mT).gather(-1, distance.expand(HEADS, -1, -1))
        from_place = (key @ of_queries.mT).gather(-1, distance.mT.expand(HEADS, -1, -1)).mT
        scale = (3 * 8) ** -0.5
        bias = (to_place + from_place) * scale
        h = rules.attention(query, key, value, EVERY, scale, bias=bias)
        h = layer.attention.output.dense(h) + x
        x = rules.norm(h, layer.attention.output.LayerNorm)
        h = layer.output.dense(rules.unit(gelu, layer.intermediate.dense(x)))
        x = rules.norm(h + x, layer.output.LayerNorm)
    return m.classifier(rules.unit(gelu, m.pooler.dense(x[0])))


def t5(m, x, rules):
    """Encoder and decoder; the decoder reads the text once more, moved by one, after a start."""
    start = m.transformer.shared.weight[:1]

    def attended(a, states, memory, seen, bias):
        query, key, value = heads(a.q(states)), heads(a.k(memory)), heads(a.v(memory))
        return a.o(rules.attention(query, key, value, seen, 1.0, bias=bias))

    def unit(states, f):
        return f.wo(rules.unit(relu, f.wi(states)))

    def bias_of(stack, bidirectional):
        a = stack.block[0].layer[0].SelfAttention
        relative = torch.arange(N) - torch.arange(N)[:, None]
        bucket = relative.abs() + 16 * (relative > 0) if bidirectional else (-relative).clamp(min=0)
        return a.relative_attention_bias.weight[bucket].permute(2, 0, 1)  # below 8 a place each

    memory, states = x, torch.cat([start, x[:-1]])
    bias = bias_of(m.transformer.encoder, True)
    for block in m.transformer.encoder.block:
        own, last = block.layer
        h = rules.norm(memory, own.layer_norm)
        memory = memory + attended(own.SelfAttention, h, h, EVERY, bias)
        memory = memory + unit(rules.norm(memory, last.layer_norm), last.DenseReluDense)
    memory = rules.norm(memory, m.transformer.encoder.final_layer_norm)
    bias = bias_of(m.transformer.decoder, False)
    for block in m.transformer.decoder.block:
        own, cross, last = block.layer
        h = rules.norm(states, own.layer_norm)
        states = states + attended(own.SelfAttention, h, h, CAUSAL, bias)
        h = rules.norm(states, cross.layer_norm)
        states = states + attended(cross.EncDecAttention, h, memory, EVERY, 0)
        states = states + unit(rules.norm(states, last.layer_norm), last.DenseReluDense)
    states = rules.norm(states, m.transformer.decoder.final_layer_norm)[-1]
    head = m.classification_head
    return head.out_proj(rules.unit(torch.tanh, head.dense(states)))


def encoder(m, x, rules):
    for layer in m.encoder.layers:
        a = layer.self_attn
        query, key, value = linear(x, a.in_proj_weight, a.in_proj_bias).chunk(3, -1)
        h = rules.attention(heads(query), heads(key), heads(value), EVERY, 8**-0.5)
        x = rules.norm(x + a.out_proj(h), layer.norm1)
        h = layer.linear2(rules.unit(relu, layer.linear1(x)))
        x = rules.norm(x + h, layer.norm2)
    return m.out(x.mean(0))


_DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "share_att_key": False}
_DEBERTA |= {"position_biased_input": False, "type_vocab_size": 0, "max_relative_positions": 64}
_OPT = {"ffn_dim": 48, "word_embed_proj_dim": WIDTH}
_T5 = {"d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": HEADS}
_T5 |= {"vocab_size": 40, "eos_token_id": 3, "pad_token_id": 0, "num_labels": 3}
_MIXTRAL = {"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": None}
JUDGES = {
    "Gemma 2": (gemma2, lambda: tiny.made("Gemma2", **GROUPED, sliding_window=4)),
    "Phi-3": (phi3, lambda: tiny.made("Phi3", **GROUPED)),
    "Mixtral": (mixtral, lambda: tiny.made("Mixtral", **GROUPED | _MIXTRAL)),
    "OPT": (opt, lambda: tiny.made("OPT", **SIZE | _OPT)),
    "GPT-NeoX": (gpt_neox, lambda: tiny.made("GPTNeoX", **SIZE)),
    "ModernBERT": (modernbert, lambda: tiny.made("ModernBert", **SIZE, local_attention=4)),
    "DeBERTa": (deberta, lambda: tiny.made("DebertaV2", **SIZE | _DEBERTA)),
    "T5": (t5, lambda: tiny.made("T5", **_T5, decoder_start_token_id=0, initializer_factor=3.0)),
    "torch's encoder": (encoder, lambda: tiny.of_own_class(**SIZE)),
}


@pytest.mark.parametrize("name", JUDGES)
def test_a_family_s_maps_are_those_of_its_equations(name):
    forward, make = JUDGES[name]
    model = make()
    with torch.no_grad():
        logits = model(input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits[0]
    target, judge = int(logits.argmax()), make().double()
    for method in ("attnlrp", "cp-lrp"):
        words = judge.get_input_embeddings().weight[IDS[0]].detach().requires_grad_()
        said = forward(judge, words, Rules(cp=method == "cp-lrp"))
        assert torch.allclose(said.detach().float(), logits, atol=1e-4)
        (slope,) = torch.autograd.grad(said[target], words)
        expected = (slope * words.detach()).sum(-1)
        found = lrp.attribute(model, {"input_ids": IDS}, method)[0]
        assert float((found - expected).abs().max()) <= 1e-4 * float(expected.abs().max()), method


_NO_WEIGHTS = ("T5", "Gemma 2", "DeBERTa")  # read twice; scores that are capped, or three products


@pytest.mark.parametrize("name", JUDGES)
def test_the_mask_gradient_is_the_slope_as_a_token_is_hidden(name):
    forward, make = JUDGES[name]
    if name in _NO_WEIGHTS:
        with pytest.raises(
            TypeError, match=r"reads its words twice|an attention that is not softmax"
        ):
            lrp.attribute(make(), {"input_ids": IDS}, "mask-gradient")
        return
    found, judge = lrp.attribute(make(), {"input_ids": IDS}, "mask-gradient")[0], make().double()
    words, step = judge.get_input_embeddings().weight[IDS[0]], 1e-5
    target = forward(judge, words, Rules()).argmax()
    for token in (1, 4, N - 2):
        below, above = (forward(judge, words, Rules(token=token, degree=d)) for d in (-step, step))
        slope = float((below - above)[target]) / (2 * step)
        assert abs(float(found[token]) - slope) <= 1e-4 * float(found.abs().max())
