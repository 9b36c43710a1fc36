"""Encoded inputs: which tokens count, how rows are chosen, what is refused."""

import torch

from lrputils.model.inputs import Inputs, encode

from transformers import PreTrainedTokenizer  # isort: skip
from tests import tiny

TOKENIZER = tiny.classifier(layers=1).tokenizer
TEXTS = ["A good film.", "Bad", "Not a bad film, all in all!"]


def test_masks_and_tokens_of_a_padded_batch():
    inputs = encode(TOKENIZER, TEXTS)
    theirs = TOKENIZER(TEXTS, padding=True, return_tensors="pt", return_special_tokens_mask=True)
    assert set(inputs) == set(theirs)
    assert all(torch.equal(inputs[name], theirs[name]) for name in theirs)
    assert inputs.lengths.tolist() == [6, 3, 11]
    assert inputs.tokens[0] == ("[CLS]", "a", "good", "film", ".", "[SEP]")
    assert inputs.content_mask.sum(1).tolist() == [4, 1, 9]
    assert inputs.content_mask.dtype == inputs.valid_mask.dtype == torch.bool
    assert inputs.truncated == ()
    assert inputs.replacements == {"mask": 4, "pad": 0, "unk": 1}


def test_rows_by_number_slice_list_and_mask():
    inputs = encode(TOKENIZER, [*TEXTS, "word " * 600], truncate=True)
    assert inputs.truncated == (3,)
    assert inputs.rows([3, 0]).truncated == (0,)
    assert torch.equal(
        inputs.rows([1, 0])["input_ids"], encode(TOKENIZER, TEXTS[1::-1])["input_ids"]
    )
    assert inputs.rows(slice(0, 2)).tokens == inputs.tokens[:2]
    assert inputs.rows(-2).tokens == (inputs.tokens[2],)
    assert inputs.rows(torch.tensor([False, True, True, False])).tokens == inputs.tokens[1:3]


def test_the_default_limit_is_the_model_s_if_that_is_less():
    assert encode(TOKENIZER, "word " * 500).lengths.item() == 502
    cut = encode(TOKENIZER, "word " * 99, max_length=100, positions=64, truncate=True)
    assert (cut.lengths.item(), cut.truncated) == (64, (0,))


def test_a_tokenizer_without_padding_or_special_tokens():
    tokenizer = tiny.byte_tokenizer()
    tokenizer.pad_token = None
    inputs = encode(tokenizer, ["bab", "b"])
    a, b, end = tokenizer.convert_tokens_to_ids(["a", "b", "</s>"])
    assert inputs["input_ids"].tolist() == [[b, a, b], [b, end, end]]
    assert torch.equal(inputs.content_mask, inputs.valid_mask)
    assert inputs.replacements == {}


def test_of_takes_any_batch_of_tensors():
    inputs = Inputs.of(TOKENIZER(TEXTS, padding=True, return_tensors="pt"))
    assert Inputs.of(inputs) is inputs
    assert [len(row) for row in inputs.tokens] == inputs.lengths.tolist() == [6, 3, 11]


class Words(PreTrainedTokenizer):
    """A tokenizer in Python that does not say which tokens it adds."""

    known = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "film")
    vocab_size = len(known)

    def __init__(self):
        pad, unk, cls, sep, *_ = self.known
        super().__init__(pad_token=pad, unk_token=unk, cls_token=cls, sep_token=sep)

    def get_vocab(self):
        return {word: number for number, word in enumerate(self.known)}

    def _tokenize(self, text, **_):
        return text.split()

    def _convert_token_to_id(self, token):
        return self.get_vocab().get(token, 1)

    def _convert_id_to_token(self, number):
        return self.known[number]

    def build_inputs_with_special_tokens(self, first, second=None):
        return [2, *first, 3]


def test_a_tokenizer_that_does_not_say_which_tokens_it_adds():
    inputs = encode(Words(), ["a film odd", "film"])
    assert inputs["input_ids"].tolist() == [[2, 4, 5, 1, 3], [2, 5, 3, 0, 0]]
    assert inputs.content_mask.tolist() == [[0, 1, 1, 1, 0], [0, 1, 0, 0, 0]]
