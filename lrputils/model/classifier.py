"""Loading a text classifier (or next-token model) with its tokenizer, ready to be attributed.

From a folder, the Hugging Face hub or the package itself; in evaluation mode, parameters frozen,
in float32 by default. Models that the package cannot attribute are refused here, by name.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from warnings import catch_warnings, warn

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from lrputils.data import files
from lrputils.data.texts import Texts
from lrputils.mistakes import about, listed, one_of, plainly
from lrputils.model import chats
from lrputils.model import inputs as _inputs
from lrputils.model.architectures import Architecture, describe
from lrputils.model.functions import Words, of_function, of_module
from lrputils.model.inputs import Inputs
from lrputils.model.readout import NO_ANSWERS, find_class

EMBEDDED = Path(__file__).parents[1] / "assets" / "reviewer"
NAME = "lrputils reviewer"  # what pages call it

_DTYPES = "float64", "float32", "bfloat16", "float16"
_KINDS = {
    "ForSequenceClassification": AutoModelForSequenceClassification,
    "ForCausalLM": AutoModelForCausalLM,
    "LMHeadModel": AutoModelForCausalLM,
}
# What configurations and tokenizer files say of where they come from, or of the last batch.
_PASSING = (
    *("_name_or_path", "name_or_path", "architectures", "transformers_version"),
    *("is_local", "local_files_only", "truncation", "padding", "_from_model_config"),
)
_MOST_LAYERS = 1000
_ENDS = re.compile(r"[A-Za-z0-9.,:;!?)]")  # what a blank follows
_VOCABULARIES = "tokenizer.json", "vocab.*", "*.model"
# What the libraries' messages mean here: theirs give advice that this package does not follow.
_MEANINGS = {
    "trust_remote_code": "it comes with program code of its own, which is never run here",
    "does not recognize this architecture": "this transformers does not know its kind of model",
    "weights_only": "its .bin file holds more than tensors, and such a file could run code: save "
    "its weights as safetensors",
    "ignore_mismatched_sizes": "its weights have other shapes than its config.json says",
    "UnpicklingError": "its .bin file is damaged",
    "SafetensorError": "its safetensors file is damaged",
}


@dataclass(frozen=True, eq=False, repr=False)
class Classifier:
    """A model with the tokenizer that belongs to it.

    Attributes:
        model: in evaluation mode, its parameters frozen.
        tokenizer: the Hugging Face tokenizer.
        name: the folder's name, the hub's name, or what the package's own model is called.
        revision: the hub's commit; None for a local model.
        prompt: how a language model is asked for a class; None where it is not.
    """

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    name: str
    revision: str | None = None
    prompt: chats.Prompt | None = None
    _said: dict[str, tuple[str, bool]] = field(default_factory=dict, init=False)

    @cached_property
    def architecture(self) -> Architecture:
        """Where the model's layers, attention and embeddings are, as far as they are known."""
        return describe(self.model)

    @cached_property
    def identity(self) -> str:
        """The hub's commit, or the sha256 of the weights: which model a recorded run measured."""
        if self.revision is not None:
            return f"commit {self.revision}"
        return files.digest(
            part
            for name, tensor in sorted(self.model.state_dict().items())
            for part in (
                name.encode(),
                tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy(),
            )
        )

    @property
    def parts(self) -> dict[str, Any]:
        """All that decides its maps: `identity`, digests of its `configuration` and `tokenizer`.

        And those of its `prompt`, where it has one; of a language model the `generation`
        configuration, by which it answers.
        """
        told: dict[str, Any] = {} if self.prompt is None else self.prompt._asdict()
        if self.architecture.language_model:
            told["generation"] = _digest_json(self.model.generation_config.to_json_string())
        return told | {
            "identity": self.identity,
            "configuration": _digest_json(self.model.config.to_json_string(use_diff=False)),
            "tokenizer": _digest_tokenizer(self.tokenizer),
        }

    @property
    def device(self) -> torch.device:
        """Where the model is, and where `encode` puts its inputs."""
        return next(self.model.parameters()).device

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the logits; a next-token model has none."""
        if self.architecture.language_model:
            return ()
        return tuple(name for _, name in sorted(self.model.config.id2label.items()))

    def number_labels(
        self, labels: Iterable[Any], names: Mapping[Any, Any] | None = None
    ) -> list[int | None]:
        """Return the class that each label means: see `lrputils.model.readout.find_class`.

        None where it means no class, as a missing label, a list of several, or a score. `names`
        says what a label is called in the model, as `{"Positive": "LABEL_1"}`.

        Raises:
            ValueError: a label names several classes, or a value of `names` names none.
        """
        names = dict(names or {})
        if stray := [name for name in names.values() if find_class(name, self.labels) is None]:
            raise ValueError(f"{stray} are none of the classes {listed(self.labels)}")
        labels = list(labels)
        different = {label for label in labels if isinstance(label, Hashable)}
        found = {label: find_class(names.get(label, label), self.labels) for label in different}
        return [found[label] if isinstance(label, Hashable) else None for label in labels]

    def warn_of_labels(self, labels: Sequence[Any], numbers: Sequence[int | None]) -> None:
        """Warn where labels name no class of a model with several: a regression's are scores."""
        strays = [
            str(each)[:40]
            for each, number in zip(labels, numbers, strict=True)
            if number is None and str(each) not in ("None", "nan")
        ]
        if strays and len(self.labels) > 1:
            names = [*dict.fromkeys(strays)]
            warn(
                f"{len(strays)} of {len(labels)} labels name no class: {listed(names, 5)}; those "
                f"of {self.name!r} are {listed(self.labels)}. Accuracy is left out, and all else "
                f"goes on. --labels {names[0]}=CLASS,…, in Python "
                f"labels={{{names[0]!r}: 'CLASS', …}}, says what a label is called in the model",
                stacklevel=3,
            )

    def encode(
        self,
        texts: Any,
        max_length: int | None = None,
        *,
        truncate: bool = False,
        answer: str | Sequence[str] | None = None,
    ) -> Inputs:
        """Tokenize texts into a padded batch on the model's device.

        Args:
            texts: one a row: a list, an iterator, an array or a Series of strings, or of pairs
                `(first, second)`; of records, a DataFrame or `datasets.Dataset` the columns that
                are called as columns of texts usually are. A single string is one row. For a
                language model also chats, a list of messages `{"role": …, "content": …}` each: its
                tokenizer's template lays them out.
            max_length: the longest row allowed, in tokens with special ones; by default 512, or the
                model's number of positions where that is less. Of chats and answers that number.
            truncate: cut longer texts, of a pair the longer side, instead of refusing them;
                `Inputs.truncated` lists them. Chats, answers and templates are never cut.
            answer: what a language model says to each text, one for all or one a text; then that
                is explained instead of the next token.

        Raises:
            TypeError: texts of no such type, or one is not a string (a missing value, for example).
            ValueError: no texts, one without a token of its own, or a too long one; no column of
                texts; a chat or an answer that the model, its tokenizer or its template does not
                take (see `lrputils.model.chats`).
        """
        chat = answer is not None or chats.are_prompts(texts)
        if chat and not self.architecture.language_model:
            raise ValueError(f"{type(self.model).__name__} {NO_ANSWERS}")
        if chat or self.prompt is not None:
            stated = getattr(self.architecture.config, "max_position_embeddings", None)
            return chats.encode(
                self.tokenizer,
                texts,
                answer,
                max_length=max_length or self.architecture.max_positions or stated,
                template=self.prompt.template if self.prompt else chats.PLAIN,
                truncate=truncate and self.prompt is not None,
            ).to(self.device)
        return _inputs.encode(
            self.tokenizer,
            texts,
            max_length=max_length,
            truncate=truncate,
            positions=self.architecture.max_positions,
        ).to(self.device)

    def zero_shot(
        self,
        template: str,
        labels: Sequence[str],
        thresholds: Sequence[float] = (),
        *,
        calibrate_on: Sequence[str] | None = None,
    ) -> Classifier:
        """Return a language model as a classifier: which of some tokens follows a text in a prompt.

        Its logits are the language model's own, of these tokens behind the prompt, less a threshold
        each, if there are some. It shares the model's parameters.

        Args:
            template: the prompt, with {text} in the place of each text. Its tokens are special.
            labels: of the classes, a token each, written as they follow the prompt: " positive".
            thresholds: one a class.
            calibrate_on: texts, whose labels are not needed: each class's threshold is then the
                median of its log-probability over them.

        Raises:
            TypeError: the model is not covered.
            ValueError: no language model; a template without {text}; fewer than two labels, or one
                that is not a token of its own.
        """
        architecture = self.architecture
        if not architecture.language_model:
            raise ValueError(f"{type(self.model).__name__} is a classifier already")
        if template.count("{text}") != 1:
            raise ValueError(
                about("template", template)
                + " must contain {text} exactly once, where the text goes"
            )
        ids = [self.tokenizer(label, add_special_tokens=False)["input_ids"] for label in labels]
        long = [label for label, own in zip(labels, ids, strict=True) if len(own) != 1]
        if long or len(set(map(tuple, ids))) < max(2, len(ids)):
            raise ValueError(
                f"verbalizers={labels!r}: two different tokens at least; {long or 'these'} are "
                "not. A label often has a blank before it, as ' positive'"
            )
        end = template.partition("{text}")[2][-1:] or "."
        for label, own in zip(labels, ids, strict=True):
            behind = self.tokenizer(f"{end} {label.strip()}", add_special_tokens=False)["input_ids"]
            if _ENDS.fullmatch(end) and behind[-1] != own[0]:
                raise ValueError(
                    f"verbalizers={labels!r}: {label!r} would follow the prompt without a blank, "
                    f"which is another token: write {' ' + label.strip()!r}"
                )
        config = copy.deepcopy(self.model.config)
        config.id2label = {number: label.strip() for number, label in enumerate(labels)}
        known = {id(part): part for part in self.model.parameters()} | {
            id(self.model.config): config
        }
        model: Any = None
        with suppress(ValueError), torch.device("meta"):
            model = AutoModelForSequenceClassification.from_config(config)
        if not hasattr(model, "score"):
            raise TypeError(
                f"{type(self.model).__name__} has no classifier with a layer of scores here"
            )
        setattr(model, model.base_model_prefix, copy.deepcopy(architecture.backbone, known))
        words = self.model.get_output_embeddings().weight[[own[0] for own in ids]]
        model.score = nn.Linear(*words.T.shape, device=words.device, dtype=words.dtype)
        model.score.weight = nn.Parameter(words.detach())
        model.score.bias = nn.Parameter(-words.new_tensor(thresholds or [0.0] * len(ids)))
        prompt = chats.Prompt(template, tuple(labels), tuple(thresholds))
        found = replace(self, model=model.eval().requires_grad_(False), prompt=prompt)
        if calibrate_on is None:
            return found
        encoded = (found.encode([text]).model_kwargs() for text in calibrate_on)
        with torch.inference_mode():
            logits = torch.cat([found.model(**each).logits for each in encoded])
        middle = logits.log_softmax(1).quantile(0.5, 0).tolist()
        return self.zero_shot(template, labels, [round(value, 4) for value in middle])

    def reply(self, text: Any, most: int = 64) -> tuple[str, bool]:
        """Return what a language model says to one text or chat, and whether that was cut.

        Each time its most probable token, `most` of them at most.

        Raises:
            ValueError: what `encode` refuses, or a model that says nothing to it.
        """
        if not self.architecture.language_model:
            raise ValueError(f"{type(self.model).__name__} {NO_ANSWERS}")
        return chats.reply(self.model, self.tokenizer, self.encode([text]), most)

    def answered(self, texts: Texts, most: int = 64) -> Texts:
        """Return exchanges with their answers: where one has none, what the model says itself.

        An answer of more than so many tokens is cut, and a warning says how many were.

        Args:
            texts: as `load_texts(…, answers=…)` returns them.
            most: tokens of an answer.

        Raises:
            ValueError: what `reply` refuses.
        """
        found, cut = [], 0
        for each in texts:
            asked, known = repr((each.prompt, most)), each.answer is not None
            if not known and asked not in self._said:
                self._said[asked] = self.reply(each.prompt, most)
            said, long = (each.answer, False) if known else self._said[asked]
            pieces = self.tokenizer(said, add_special_tokens=False, return_offsets_mapping=True)
            spans = pieces["offset_mapping"]
            cut += long or len(spans) > most
            found.append(replace(each, answer=said[: spans[:most][-1][1]]))
        if cut:
            warn(f"{cut} of {len(found)} answers are cut behind {most} tokens", stacklevel=2)
        return replace(texts, texts=tuple(found))

    def __repr__(self) -> str:
        kind = type(self.model).__name__
        return f"Classifier({self.name}: {kind}, {self.architecture.layers} layers)"


def load_classifier(
    model: str | Path | nn.Module | Any | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    revision: str | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "float32",
    template: str | None = None,
    verbalizers: str | Sequence[str] | None = None,
    calibrate_on: Sequence[str] | None = None,
    function: Callable[[list[str]], Any] | None = None,
    labels: Sequence[str] | None = None,
) -> Classifier:
    r"""Load a classifier or next-token model with its tokenizer.

    Args:
        model: a folder as `save_pretrained` writes it, a name on the Hugging Face hub
            (``owner/name`` or ``owner/name@revision``), or `None` for the model that comes with the
            package. A model at hand with its tokenizer, or a pipeline, is taken as it is and where
            it is; so is any module of torch, `module(input_ids, attention_mask)` → logits.
        tokenizer: of a model at hand.
        revision: branch, tag or commit on the hub; `Classifier.revision` is the commit it means.
        device: "auto" takes the GPU if there is one; else any torch device.
        dtype: precision of the parameters. Leave-one-out is a difference of close numbers, so
            below float32 it loses most of its digits.
        template: the prompt, with {text} in it, by which a language model is a classifier: see
            `Classifier.zero_shot`. ``\n`` is a line break also where a shell gives two characters.
        verbalizers: its classes in its own words, also as one text with commas: " bad, good".
        calibrate_on: texts that set its thresholds.
        function: in a model's place a list of texts → their probabilities, (texts, classes), as
            an API or a pipeline of scikit-learn gives them. Its tokens are words, which can be
            removed; what is explained is the logarithm of a class's probability. A run knows it by
            its name alone.
        labels: of a function's classes.

    Raises:
        FileNotFoundError: no such folder, or no such model on the hub.
        ConnectionError: the hub cannot be reached and the model is not in the local cache.
        ValueError: an unknown device or precision, a revision of a local folder, a folder that
            holds no classifier with all its weights, or what `zero_shot` refuses.
        TypeError: a model that reads no text, or has an adapter. One that the rules do not cover is
            loaded: tokens can be removed from it.
    """
    if function is not None:
        wrapped, words = of_function(function, labels)
        return Classifier(wrapped, words, wrapped.config.name_or_path)
    if tokenizer is not None or not isinstance(model, str | Path | None):
        found = _at_hand(model, tokenizer)
    else:
        found = _stored(model, revision, device, dtype)
    precision = next(found.model.parameters()).dtype
    if precision in (torch.float16, torch.bfloat16):
        warn(
            f"this {type(found.model).__name__} computes in "
            f"{str(precision).removeprefix('torch.')}: leave-one-out is a difference of close "
            "numbers, and few of its digits are left there. model.float() makes it float32",
            stacklevel=2,
        )
    if template is None and verbalizers is None and calibrate_on is None:
        return found
    if template is None or verbalizers is None:
        raise ValueError(about("template") + " and " + about("verbalizers") + " come together")
    labels = verbalizers.split(",") if isinstance(verbalizers, str) else verbalizers
    return found.zero_shot(template.replace("\\n", "\n"), labels, calibrate_on=calibrate_on)


def _stored(
    place: str | Path | None,
    revision: str | None,
    device: str | torch.device,
    dtype: str | torch.dtype,
) -> Classifier:
    """What lies in a folder or on the hub, or the package's own model, as a classifier."""
    device = find_device(device)
    dtype = getattr(torch, one_of("dtype", str(dtype).removeprefix("torch."), _DTYPES))
    name, folder, commit = files.find_model(str(EMBEDDED if place is None else place), revision)
    name = name if place else NAME
    with _quietly():
        model = _load_model(folder, name, dtype)
        tokenizer = _load_tokenizer(folder, name)
    config = model.config.get_text_config()
    if config.pad_token_id is None:  # decoders' heads find a text's end by it
        config.pad_token_id = _inputs.padding_id(tokenizer)
    describe(model)
    model = model.to(device=device, dtype=dtype).eval().requires_grad_(False)
    return Classifier(model, tokenizer, name, commit)


def _at_hand(held: Any, tokenizer: PreTrainedTokenizerBase | None) -> Classifier:
    """A model and its tokenizer, or a pipeline that has both, as a classifier."""
    model = held if isinstance(held, nn.Module) else getattr(held, "model", None)
    tokenizer = tokenizer or getattr(held, "tokenizer", None)
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"a classifier is loaded from a folder, a name, a pipeline, or a model with its "
            f"tokenizer; got a {type(held).__name__}"
        )
    if tokenizer is None:
        raise ValueError(
            f"{type(model).__name__} comes without its tokenizer: load_classifier(model, tokenizer)"
        )
    if not any(isinstance(part, PreTrainedModel) for part in model.modules()):
        model = of_module(model, tokenizer)
    describe(model)
    return Classifier(model, tokenizer, Path(model.config.name_or_path).name or "a model at hand")


def _check_index(folder: Path, name: str) -> None:
    """Refuse weights that an index looks for outside of the model's folder."""
    for index in folder.glob("*.index.json"):
        with plainly(f"The model {name!r}", _MEANINGS):
            named = {*json.loads(index.read_text("utf-8"))["weight_map"].values()}
        for file in sorted(named):
            files.inside(folder, file)


def _load_model(folder: Path, name: str, dtype: torch.dtype) -> nn.Module:
    _check_index(folder, name)
    with plainly(f"The model {name!r}", _MEANINGS):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        stated = str(next(iter(config.architectures or ["(no architecture stated)"])))
    if "/" in str(config._attn_implementation):  # "owner/name" on the hub
        raise ValueError(f"{name!r} asks for program code from the hub, which is never run here")
    if (layers := getattr(config.get_text_config(), "num_hidden_layers", None) or 0) > _MOST_LAYERS:
        raise ValueError(f"{name!r} states {layers:,} layers, more than {_MOST_LAYERS:,}")
    kind = next((kind for ending, kind in _KINDS.items() if stated.endswith(ending)), None)
    if kind is None:
        raise ValueError(
            f"{name!r} is a {stated}, not a classifier or a next-token model (its config names no "
            f"class that ends in {', '.join(_KINDS)}); fine-tune it for classification first"
        )
    with plainly(f"The model {name!r}", _MEANINGS):
        model, report = kind.from_pretrained(
            folder, config=config, dtype=dtype, trust_remote_code=False, output_loading_info=True
        )
    missing = sorted({*report["missing_keys"], *report["mismatched_keys"]})
    if missing:
        raise ValueError(
            f"The weights of {name!r} lack {len(missing)} parameters of "
            f"{type(model).__name__}, which would stay random: {', '.join(map(str, missing[:4]))}"
        )
    return model


def _load_tokenizer(folder: Path, name: str) -> PreTrainedTokenizerBase:
    # Without these files transformers silently makes a tokenizer without a vocabulary.
    if not any(path for pattern in _VOCABULARIES for path in folder.glob(pattern)):
        raise ValueError(
            f"{name!r} holds no tokenizer ({', '.join(_VOCABULARIES)}): save it beside the model "
            f"with `tokenizer.save_pretrained`"
        )
    with plainly(f"The tokenizer of {name!r}", _MEANINGS):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def _digest_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the digest of all that decides how it reads a text, without writing a file."""
    if isinstance(tokenizer, Words):  # which it has seen by now decides nothing
        return files.digest([Words.__name__.encode()])
    if tokenizer.is_fast:
        words = json.loads(tokenizer.backend_tokenizer.to_str())
        words = {name: value for name, value in words.items() if name not in _PASSING}
    else:
        words = [tokenizer.get_vocab(), sorted(map(str, getattr(tokenizer, "bpe_ranks", ())))]
    told = {
        "class": type(tokenizer).__name__,
        "words": words,
        "added": {n: repr(token) for n, token in tokenizer.added_tokens_decoder.items()},
        "special": tokenizer.special_tokens_map,
        "template": tokenizer.chat_template,
        "sides": [tokenizer.padding_side, tokenizer.truncation_side],
        "most": tokenizer.model_max_length,
        "types": tokenizer.model_input_names,
    }
    return files.digest([json.dumps(told, sort_keys=True, default=str).encode()])


def _digest_json(text: str) -> str:
    """Return the digest of what a configuration decides, wherever it comes from."""
    told = {name: value for name, value in json.loads(text).items() if name not in _PASSING}
    return files.digest([json.dumps(told, sort_keys=True).encode()])


def find_device(device: str | torch.device) -> torch.device:
    """Return the device of this name, "auto" for a GPU if there is one.

    Raises:
        ValueError: it cannot be used here.
    """
    found = "cuda:0" if torch.cuda.device_count() else "cpu"
    try:
        return torch.empty(0, device=found if device == "auto" else device).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            about("device", device) + f" cannot be used here: {str(error).splitlines()[0]}"
        ) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Hide transformers' loading bar and reports; errors are still raised."""
    with ExitStack() as undo, catch_warnings(action="ignore"):
        undo.callback(logging.set_verbosity, logging.get_verbosity())
        if logging.is_progress_bar_enabled():
            undo.callback(logging.enable_progress_bar)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield
