"""What `generate` of transformers takes and gives: our search, and successors to and from its own constraints."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.data.batches import Batch
from argbeam.decoding.captured_search import CapturedSearch
from argbeam.errors import ConfigError
from argbeam.huggingface.labels import ROUND, to_the_left
from argbeam.models.huggingface.adapt import adapt
from argbeam.models.huggingface.adapter import HuggingFaceModel
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
        _check(settings, logits_processor)
        assert inputs_tensor is not None
        sources = len(inputs_tensor)
        prompt = input_ids[0].tolist() if model.config.is_encoder_decoder else ()
        forced = settings.forced_bos_token_id
        prompt = (*prompt, forced) if prompt and forced is not None else prompt
        adapted = searches.known(adapt(model, decoder_prompt=prompt, generation_config=settings))
        mask_NX = model_kwargs.get("attention_mask")
        mask_BX = None if mask_NX is None else mask_NX[:: expanded // sources]
        batch = _sources(inputs_tensor, mask_BX, adapted)
        limit = settings.max_length - read - (forced is not None) - (settings.forced_eos_token_id is not None)
        beam = SearchSettings(
            settings.num_beams,
            LogprobSum(settings.length_penalty),
            StopBest(cut_off=True),
            n_best=settings.num_return_sequences,
            specials=adapted.specials,
        )
        search = Search(adapted, _successors(successors, logits_processor, adapted), beam)
        result = searches.run(search, batch, limit)
        tokens_NT = result.tokens_BNT.flatten(0, 1)
        if settings.forced_eos_token_id is not None:
            tokens_NT = torch.nn.functional.pad(tokens_NT, (0, 1), value=adapted.specials.pad)
            cut_N1 = (result.length_BN.flatten() * ~result.finished_BN.flatten())[:, None]
            ended_NT = tokens_NT.scatter(1, cut_N1, settings.forced_eos_token_id)
            tokens_NT = torch.where(cut_N1 > 0, ended_NT, tokens_NT)
        before_BX = torch.tensor(adapted.decoder_prompt, device=tokens_NT.device) if prompt else inputs_tensor
        before_NX = before_BX.expand(sources, -1).repeat_interleave(settings.num_return_sequences, 0)
        sequences = torch.cat([before_NX, tokens_NT[:, : max(1, int(result.length_BN.max()) + 1)]], 1)
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
    """Successors from a `prefix_allowed_tokens_fn`: slow, a call of Python for every row and step."""

    function: AllowedTokens
    model: HuggingFaceModel

    def start(self, batch: Batch) -> "AllowedByFunctionChoices":
        rows = [row[:length] for row, length in zip(batch.source_BS, batch.source_length_B.tolist(), strict=True)]
        if self.model.crosses:
            rows = [torch.tensor(self.model.decoder_prompt, device=batch.source_BS.device)] * len(rows)
        number_B = torch.arange(len(rows), device=batch.source_BS.device)
        return AllowedByFunctionChoices(self, tuple(rows), number_B, batch.target_BT[:, :0])


@dataclass(frozen=True)
class AllowedByFunctionChoices:
    successors: AllowedByFunction
    prompts: tuple[Tensor, ...]
    sentence_N: Int[Tensor, " N"]
    read_NT: Int[Tensor, "N T"]
    candidates_BC = None

    def allowed(self) -> Bool[Tensor, "N V"]:
        allowed_NV = torch.zeros(len(self.sentence_N), self.successors.model.vocabulary, dtype=torch.bool)
        for n, (sentence, read_T) in enumerate(zip(self.sentence_N.tolist(), self.read_NT, strict=True)):
            ids = torch.cat([self.prompts[sentence], read_T])
            allowed_NV[n, list(self.successors.function(sentence, ids))] = True
        return allowed_NV.to(self.read_NT.device)

    def advance(self, tokens_N: Int[Tensor, " N"]) -> "AllowedByFunctionChoices":
        return replace(self, read_NT=torch.cat([self.read_NT, tokens_N[:, None]], 1))

    def select(self, rows_N: Int[Tensor, " N"]) -> "AllowedByFunctionChoices":
        return replace(self, sentence_N=self.sentence_N[rows_N], read_NT=self.read_NT[rows_N])


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


def _check(settings: Any, processors: Any) -> None:
    if settings.do_sample:
        raise ConfigError("generate(do_sample=True) with argbeam's search; accepted: do_sample=False")
    for processor in processors:
        if type(processor).__name__ not in _KNOWN:
            known = ", ".join(sorted(_KNOWN))
            raise ConfigError(f"generate's {type(processor).__name__} with argbeam's search; accepted: {known}")
    if settings.num_return_sequences > settings.num_beams:
        raise ConfigError(
            f"num_return_sequences = {settings.num_return_sequences}: at most num_beams = {settings.num_beams}"
        )


def _sources(ids_BX: Tensor, mask_BX: Tensor | None, model: HuggingFaceModel) -> Batch:
    real_BX = torch.ones_like(ids_BX, dtype=torch.bool) if mask_BX is None else mask_BX.bool()
    source_BS, length_B = to_the_left(ids_BX, real_BX, model.specials.pad, multiple=ROUND if ids_BX.is_cuda else 1)
    zero_B = torch.zeros_like(length_B)
    return Batch(source_BS, length_B, source_BS[:, :0], zero_B, torch.arange(len(zero_B)).to(zero_B), model.specials)


def _successors(given: Successors | None, processors: Any, model: HuggingFaceModel) -> Successors:
    functions = [p for p in processors if type(p).__name__ == "PrefixConstrainedLogitsProcessor"]
    if functions and given is not None:
        raise ConfigError("successors and prefix_allowed_tokens_fn; one of them is accepted")
    if functions:
        return AllowedByFunction(functions[0]._prefix_allowed_tokens_fn, model)
    return given or Unconstrained(model.vocabulary, end_symbol=True)


def _output(model: Any, sequences: Tensor, scores: Tensor, settings: Any) -> Any:
    if not settings.return_dict_in_generate:
        return sequences
    from transformers.generation.utils import GenerateBeamDecoderOnlyOutput, GenerateBeamEncoderDecoderOutput

    crosses = model.config.is_encoder_decoder
    kind: Any = GenerateBeamEncoderDecoderOutput if crosses else GenerateBeamDecoderOnlyOutput
    return kind(sequences=sequences, sequences_scores=scores)
