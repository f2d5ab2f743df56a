"""What `generate` of transformers takes and gives: our search, and successors to and from its own constraints."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.decoding.captured_search import CapturedSearch
from argbeam.errors import ConfigError, counted
from argbeam.huggingface.labels import ROUND, to_the_left
from argbeam.models.huggingface.adapt import adapt
from argbeam.models.huggingface.adapter import HuggingFaceModel
from argbeam.models.huggingface.supported import check_positions, check_supported
from argbeam.runtime import device as devices
from argbeam.search.result import SearchResult
from argbeam.search.score_rules import NEVER, LogprobSum
from argbeam.search.search import Search, SearchSettings
from argbeam.search.stop_rules import StopBest
from argbeam.search.successors import Successors, Unconstrained, allowed_tokens
from argbeam.settings import Runtime

AllowedTokens = Callable[[int, Tensor], Sequence[int]]
"""transformers' `prefix_allowed_tokens_fn`: the tokens that may follow, by the sentence's number and all ids so far."""

# Processors of `generate` whose effect the search has: special tokens, forced first and last tokens, successors.
_KNOWN = {
    *("SuppressTokensLogitsProcessor", "ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor"),
    *("NoBadWordsLogitsProcessor", "PrefixConstrainedLogitsProcessor"),
}
_KNOWN_CRITERIA = {"MaxLengthCriteria", "EosTokenCriteria"}
# Inputs of models that the search would not read.
_UNREAD = ("inputs_embeds", "decoder_inputs_embeds", "decoder_attention_mask", "token_type_ids")


def search_by(successors: Successors | None = None, *, capture: bool = True) -> Callable[..., Any]:
    """`model.generate(..., custom_generate=search_by(trie))` decodes with argbeam's search and these successors.

    Beam, number of outputs, lengths, length penalty and special tokens are those of `generate`, and so are the outputs
    of `early_stopping="never"`. `prefix_allowed_tokens_fn` becomes successors too. On CUDA searches are captured in
    graphs when a shape is met for the second time: keep the function for the next call.
    """
    searches = _Searches(capture=capture)

    def decode(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any = (),
        stopping_criteria: Any = (),
        generation_config: Any = None,
        inputs_tensor: Tensor | None = None,
        **model_kwargs: Any,
    ) -> Any:
        settings, (expanded, read) = generation_config, input_ids.shape
        _check(settings, logits_processor, stopping_criteria)
        assert inputs_tensor is not None
        _check_inputs(model, inputs_tensor, model_kwargs)
        sources, crosses = len(inputs_tensor), model.config.is_encoder_decoder
        # transformers forces a token after one other, and none after a longer prompt.
        forced = settings.forced_bos_token_id if crosses and read == 1 else None
        prompt = _decoder_prompt(input_ids, forced) if crosses else ()
        adapted = searches.known(adapt(model, decoder_prompt=prompt, generation_config=settings))
        mask_NX = model_kwargs.get("attention_mask")
        mask_BX = None if mask_NX is None else mask_NX[:: expanded // sources]
        batch = _sources(inputs_tensor, mask_BX, adapted)
        # A criterion of the caller's takes the place of the settings'.
        longest = getattr(stopping_criteria, "max_length", None) or settings.max_length
        check_positions(model.config, longest - 1)  # the last token is not read
        limit = longest - read - (forced is not None) - (settings.forced_eos_token_id is not None)
        if limit < 1:
            room = f"no room for an output beside forced tokens; accepted: {longest + 1 - limit} or more"
            raise ConfigError(f"max_length = {longest}: {room}")
        beam = SearchSettings(
            settings.num_beams,
            LogprobSum(settings.length_penalty),
            StopBest(cut_off=True),
            n_best=settings.num_return_sequences,
            specials=adapted.specials,
        )
        allowed = _successors(successors, logits_processor, adapted, () if prompt else inputs_tensor.unbind())
        search = Search(adapted, allowed, beam)
        result = searches.run(search, batch, limit)
        if dead := int(result.dead_B.sum()):
            cut = f"in {dead} of {counted(sources, 'source')}, whose outputs are cut"
            warnings.warn(f"the constraint left no token {cut}", stacklevel=2)
        tokens_NT = _written(result, settings.forced_eos_token_id, adapted.specials.pad)
        before_BX = torch.tensor(adapted.decoder_prompt, device=tokens_NT.device) if prompt else inputs_tensor
        before_NX = before_BX.expand(sources, -1).repeat_interleave(settings.num_return_sequences, 0)
        sequences = torch.cat([before_NX, tokens_NT], 1)
        return _output(model, sequences, result.score_BN.flatten().clone(), settings)

    return decode


class _Searches:
    """The searches of one function for `generate`, captured where they can be, and their models."""

    def __init__(self, *, capture: bool) -> None:
        self.capture = capture
        self.captured: CapturedSearch | None = None
        self.models: list[HuggingFaceModel] = []

    def known(self, model: HuggingFaceModel) -> HuggingFaceModel:
        """The model of an earlier call, if it was the same: its graphs are those of this one."""
        wanted = (model.decoder_prompt, model.specials)
        for other in self.models:
            if other.network is model.network and (other.decoder_prompt, other.specials) == wanted:
                return other
        self.models.append(model)
        return model

    def run(self, search: Search, batch: Batch, limit: int) -> SearchResult:
        length_B = torch.full_like(batch.source_length_B, limit)
        # A function in Python cannot be captured.
        wanted = Runtime(capture=self.capture and not isinstance(search.successors, AllowedByFunction))
        recorder = devices.make_recorder(wanted, length_B.device)
        if recorder is None:
            return search(batch, length_B, steps=limit)
        self.captured = self.captured or CapturedSearch(recorder)
        return self.captured(search, batch, length_B, steps=limit)


@dataclass(frozen=True)
class AllowedByFunction:
    """Successors from a `prefix_allowed_tokens_fn`: slow, a call of Python for every prefix.

    The function is given the decoder's prompt, or that of a causal model, and the output so far; `prompts` take the
    place of the batch's, which have no padding. As in `generate`, it is asked of prefixes that it has allowed and that
    have not ended; after others nothing may follow.
    """

    function: AllowedTokens
    model: HuggingFaceModel
    prompts: Sequence[Tensor] = ()

    def start(self, batch: Batch) -> "AllowedByFunctionChoices":
        rows = [row[:length] for row, length in zip(batch.source_BS, batch.source_length_B.tolist(), strict=True)]
        if len(self.prompts):
            rows = [*self.prompts]
        elif self.model.crosses:
            rows = [torch.tensor(self.model.decoder_prompt, device=batch.source_BS.device)] * len(rows)
        number_B = torch.arange(len(rows), device=batch.source_BS.device)
        valid_B = torch.ones_like(number_B, dtype=torch.bool)
        return AllowedByFunctionChoices(self, tuple(rows), number_B, batch.target_BT[:, :0], valid_B)


@dataclass(frozen=True)
class AllowedByFunctionChoices:
    successors: AllowedByFunction
    prompts: tuple[Tensor, ...]
    sentence_N: Int[Tensor, " N"]
    read_NT: Int[Tensor, "N T"]
    valid_N: Bool[Tensor, " N"]
    answers: list[Bool[Tensor, "N V"]] = field(default_factory=list)  # the mask, once it was asked for
    candidates_BC = None

    def allowed(self) -> Bool[Tensor, "N V"]:
        if not self.answers:
            self.answers.append(self._ask())
        return self.answers[0]

    def _ask(self) -> Bool[Tensor, "N V"]:
        """Rows without a score have prefixes that the function need not know: nothing follows what is not valid."""
        allowed_NV = torch.zeros(len(self.sentence_N), self.successors.model.vocabulary, dtype=torch.bool)
        known: dict[tuple[int, ...], list[int]] = {}
        rows = zip(self.valid_N.tolist(), self.sentence_N.tolist(), self.read_NT.tolist(), strict=True)
        for n, (valid, sentence, read) in enumerate(rows):
            if not valid:
                continue
            prefix = (sentence, *read)
            if prefix not in known:
                ids = torch.cat([self.prompts[sentence], self.read_NT[n]])
                known[prefix] = list(self.successors.function(sentence, ids))
            allowed_NV[n, known[prefix]] = True
        return allowed_NV.to(self.read_NT.device)

    def advance(self, tokens_N: Int[Tensor, " N"]) -> "AllowedByFunctionChoices":
        taken_N = self.allowed().gather(1, tokens_N[:, None])[:, 0] & ~self.successors.model.specials.ended(tokens_N)
        read_NT = torch.cat([self.read_NT, tokens_N[:, None]], 1)
        return replace(self, read_NT=read_NT, valid_N=taken_N, answers=[])

    def select(self, rows_N: Int[Tensor, " N"]) -> "AllowedByFunctionChoices":
        return replace(
            self,
            sentence_N=self.sentence_N[rows_N],
            read_NT=self.read_NT[rows_N],
            valid_N=self.valid_N[rows_N],
            answers=[allowed_NV[rows_N] for allowed_NV in self.answers],
        )


@dataclass(frozen=True)
class SuccessorsProcessor:
    """A logits processor of `generate` from our successors: tokens that may not follow score minus infinity.

    `batch` has the sources, `prompt_length` counts the ids before an output: the decoder's prompt, or a causal model's
    prompt and its padding. Rows that have ended are left alone.
    """

    successors: Successors
    batch: Batch
    prompt_length: int

    def __call__(self, input_ids: Int[Tensor, "N X"], scores: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        rows = len(input_ids) // len(self.batch.source_BS)
        read_NT = input_ids[:, self.prompt_length :]
        choices = self.successors.start(self.batch)
        choices = choices.select(torch.arange(len(input_ids), device=input_ids.device) // rows)
        for tokens_N in read_NT.unbind(1):
            choices = choices.advance(tokens_N)
        ended_N1 = self.batch.specials.ended(read_NT).any(1, keepdim=True)
        return scores.masked_fill(~(allowed_tokens(choices, scores.shape[1]) | ended_N1), NEVER)


def _check(settings: Any, processors: Any, criteria: Any) -> None:
    if settings.do_sample:
        raise ConfigError("generate(do_sample=True) with argbeam's search; accepted: do_sample=False")
    for things, known in ((processors, _KNOWN), (criteria, _KNOWN_CRITERIA)):
        for thing in things:
            if type(thing).__name__ not in known:
                accepted = ", ".join(sorted(known))
                raise ConfigError(f"generate's {type(thing).__name__} with argbeam's search; accepted: {accepted}")
    if any(len(words) > 1 for words in settings.bad_words_ids or ()):
        raise ConfigError("bad_words_ids of several tokens with argbeam's search; accepted: of one token each")
    if settings.num_return_sequences > settings.num_beams:
        raise ConfigError(
            f"num_return_sequences = {settings.num_return_sequences}: at most num_beams = {settings.num_beams}"
        )


def _check_inputs(model: Any, ids_BX: Tensor, others: Mapping[str, Any]) -> None:
    """Raise a ConfigError for what `generate` would read and the search would not."""
    # A model of peft lends the model within it a method of its own.
    check_supported(getattr(model.prepare_inputs_for_generation, "__self__", model))
    unread = [name for name in _UNREAD if others.get(name) is not None]
    cached = getattr(others.get("past_key_values"), "get_seq_length", lambda: 0)()
    unread += ["past_key_values"] if cached else []
    # In the place of ids that were not given transformers puts negative ones.
    unread += ["encoder_outputs"] if not unread and bool((ids_BX < 0).any()) else []
    if unread:
        raise ConfigError(f"generate({unread[0]}=...) with argbeam's search; accepted: input_ids and attention_mask")


def _decoder_prompt(ids_NX: Int[Tensor, "N X"], forced: int | None) -> tuple[int, ...]:
    """What the decoder reads before an output, the same for all sentences."""
    if bool((ids_NX != ids_NX[:1]).any()):
        raise ConfigError("decoder_input_ids differ by sentence; argbeam's search takes the same for all of a batch")
    return (*ids_NX[0].tolist(), *(() if forced is None else (forced,)))


def _sources(ids_BX: Tensor, mask_BX: Tensor | None, model: HuggingFaceModel) -> Batch:
    real_BX = torch.ones_like(ids_BX, dtype=torch.bool) if mask_BX is None else mask_BX.bool()
    source_BS, length_B = to_the_left(ids_BX, real_BX, model.specials.pad, multiple=ROUND if ids_BX.is_cuda else 1)
    zero_B = torch.zeros_like(length_B)
    return Batch(source_BS, length_B, source_BS[:, :0], zero_B, torch.arange(len(zero_B)).to(zero_B), model.specials)


def _successors(
    given: Successors | None, processors: Any, model: HuggingFaceModel, prompts: Sequence[Tensor]
) -> Successors:
    functions = [p for p in processors if type(p).__name__ == "PrefixConstrainedLogitsProcessor"]
    if functions and given is not None:
        raise ConfigError("successors and prefix_allowed_tokens_fn; one of them is accepted")
    if functions:
        return AllowedByFunction(functions[0]._prefix_allowed_tokens_fn, model, prompts)
    return given or Unconstrained(model.vocabulary, end_symbol=True)


def _written(result: SearchResult, forced_eos: int | None, pad: int) -> Int[Tensor, "N T"]:
    """The outputs, as wide as the longest; a forced last token is written where the length limit cut one off."""
    tokens_NT, length_N = result.tokens_BNT.flatten(0, 1), result.length_BN.flatten()
    if forced_eos is not None:
        cut_N = (length_N > 0) & ~result.finished_BN.flatten()
        tokens_NT = torch.nn.functional.pad(tokens_NT, (0, 1), value=pad)
        ended_NT = tokens_NT.scatter(1, length_N[:, None], forced_eos)
        tokens_NT, length_N = torch.where(cut_N[:, None], ended_NT, tokens_NT), length_N + cut_N
    return tokens_NT[:, : max(1, int(length_N.max()))]


def _output(model: Any, sequences: Tensor, scores: Tensor, settings: Any) -> Any:
    if not settings.return_dict_in_generate:
        return sequences
    from transformers.generation.utils import GenerateBeamDecoderOnlyOutput, GenerateBeamEncoderDecoderOutput

    crosses = model.config.is_encoder_decoder
    kind: Any = GenerateBeamEncoderDecoderOutput if crosses else GenerateBeamDecoderOnlyOutput
    return kind(sequences=sequences, sequences_scores=scores)
