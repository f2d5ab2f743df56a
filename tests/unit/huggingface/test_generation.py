"""Our search and transformers' `generate`: the same n best outputs, and each with the constraints of the other."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from argbeam.data.batches import Example, make_batch
from argbeam.data.vocabulary import EOS, PAD
from argbeam.errors import ConfigError
from argbeam.huggingface import AllowedByFunction, SuccessorsProcessor, adapt, search_by
from argbeam.losses import Bso
from argbeam.runtime import device as devices
from argbeam.search.constraints.trie import Trie
from argbeam.search.score_rules import LogprobSum
from argbeam.search.search import beam_search
from argbeam.search.stop_rules import StopBest
from argbeam.search.successors import Unconstrained
from refusals import refusal
from tape import TapeRecorder
from tiny_transformers import FAMILIES, VOCABULARY, tiny

IDS = torch.tensor([[4, 5, 6], [7, 8, 8]])
WORDS = [(4, 5), (4, 5, 6), (5,), (8, 7, 4), (6, 6, 6, 6)]
BEST = {"num_beams": 3, "num_return_sequences": 3, "early_stopping": "never", "max_new_tokens": 8}


def cut(row: list[int], ends: list[int]) -> tuple[int, ...]:
    end = next((place for place, token in enumerate(row) if token in ends), len(row) - 1)
    return tuple(row[: end + 1])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_n_best_are_those_of_generate(family: str) -> None:
    """Open and fixed length, one or two end symbols, length penalties 0 and 1: two of three cases a family."""
    number = list(FAMILIES).index(family)
    for seed in (number % 3, (number + 1) % 3):
        draw = random.Random(f"{family}{seed}")
        beam, power, limit, fixed = draw.choice([2, 3, 5]), float(seed % 2), draw.choice([5, 12]), seed == 2
        ends = [EOS] if draw.random() < 0.5 else [EOS, 6]
        network = tiny(family, seed=seed)
        network.generation_config.eos_token_id = ends
        model = adapt(network)
        source = tuple(draw.randrange(4, 9) for _ in range(draw.randrange(1, 6)))
        batch = make_batch([Example(source, (), 0), Example((4,) * 6, (), 1)], specials=model.specials)
        found = beam_search(
            model, model.encode(batch, None), Unconstrained(VOCABULARY, end_symbol=not fixed).start(batch),
            beam_size=beam, length_B=torch.full((2,), limit), steps=limit, rule=LogprobSum(power),
            stop=None if fixed else StopBest(cut_off=True), n_best=beam, specials=model.specials,
        )  # fmt: skip
        barred = [*model.specials.unwritten, *(ends if fixed else [])]
        ids = torch.tensor([source])
        theirs = network.generate(
            ids, attention_mask=torch.ones_like(ids), num_beams=beam, num_return_sequences=beam, max_new_tokens=limit,
            early_stopping="never", length_penalty=power, suppress_tokens=barred,
        )  # fmt: skip
        read = 1 if model.crosses else len(source)
        ours = zip(found.tokens_BNT[0].tolist(), found.length_BN[0].tolist(), strict=True)
        expected = [cut(row[read:], [] if fixed else ends) for row in theirs.tolist()]
        assert [tuple(row[:length]) for row, length in ours if length] == expected


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_a_saved_model_gives_by_generate_what_our_search_gives(family: str, tmp_path: Path) -> None:
    """Nothing of ours is saved: the class of transformers loads it."""
    import transformers

    network = tiny(family)
    adapt(network)
    options = BEST | {"suppress_tokens": [PAD]}
    ours = network.generate(IDS, custom_generate=search_by(), **options)
    network.save_pretrained(tmp_path)
    again = getattr(transformers, FAMILIES[family][0]).from_pretrained(tmp_path, dtype=torch.float64)
    assert again.config._attn_implementation != "argbeam"
    theirs = again.generate(IDS, **options)
    read = 1 if family == "t5" else 3
    for one, other in zip(ours.tolist(), theirs.tolist(), strict=True):
        assert cut(one[read:], [EOS]) == cut(other[read:], [EOS])


def test_generate_replays_captured_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of a shape runs eagerly, the second one records; other sources give other outputs."""
    network, recorder, decode = tiny("t5"), TapeRecorder(), search_by()
    others = torch.tensor([[5, 4, 8], [6, 4, 4]])
    options = BEST | {"suppress_tokens": [PAD], "return_dict_in_generate": True}
    expected = [network.generate(ids, custom_generate=search_by(), **options) for ids in (IDS, others)]
    monkeypatch.setattr(devices, "make_recorder", lambda runtime, device: recorder)
    network.generate(IDS, custom_generate=decode, **options)
    found = [network.generate(ids, custom_generate=decode, **options) for ids in (IDS, others)]
    assert len(recorder.tapes) > 0 and not torch.equal(found[0].sequences, found[1].sequences)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.sequences, other.sequences)
        torch.testing.assert_close(one.sequences_scores, other.sequences_scores)


def test_generate_decodes_a_padded_batch_by_our_search() -> None:
    """A causal batch is padded on the left; scores come with the sequences, and the call's own special tokens count."""
    network = tiny("llama")
    ids = torch.tensor([[4, 5, 6], [PAD, 7, 8]])
    options = BEST | {"attention_mask": (ids != PAD).long(), "return_dict_in_generate": True, "output_scores": True}
    options |= {"suppress_tokens": [PAD, 5], "eos_token_id": [EOS, 8]}
    ours = network.generate(ids, custom_generate=search_by(), **options)
    theirs = network.generate(ids, **options)
    for one, other in zip(ours.sequences.tolist(), theirs.sequences.tolist(), strict=True):
        assert one[:3] == other[:3] and cut(one[3:], [EOS, 8]) == cut(other[3:], [EOS, 8])
    torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, rtol=1e-5, atol=1e-5, check_dtype=False)


def test_forced_first_and_last_tokens_are_written() -> None:
    network = tiny("bart")
    options: dict[str, Any] = {"forced_bos_token_id": 7, "forced_eos_token_id": EOS, "length_penalty": 0.0}
    options |= BEST | {"suppress_tokens": [PAD], "max_new_tokens": 4}
    ours = network.generate(IDS, custom_generate=search_by(), **options)
    theirs = network.generate(IDS, **options)
    assert [cut(row[1:], [EOS]) for row in ours.tolist()] == [cut(row[1:], [EOS]) for row in theirs.tolist()]
    options |= {"decoder_input_ids": torch.tensor([[EOS, 5]] * 2)}  # after which nothing is forced
    ours, theirs = (network.generate(IDS, custom_generate=decode, **options) for decode in (search_by(), None))
    assert [cut(row[2:], [EOS]) for row in ours.tolist()] == [cut(row[2:], [EOS]) for row in theirs.tolist()]


def trie_function(read: int) -> Any:
    """The trie of `WORDS` as a `prefix_allowed_tokens_fn`."""

    def allowed(sentence: int, ids: Tensor) -> list[int]:
        prefix = tuple(ids.tolist()[read:])
        ended = [(*word, EOS) for word in WORDS]
        following = {word[len(prefix)] for word in ended if word[: len(prefix)] == prefix and len(word) > len(prefix)}
        return sorted(following) or [EOS]

    return allowed


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_constraints_go_from_one_to_the_other(family: str) -> None:
    """A trie in our search, its function in `generate`, that function in our search, the trie in `generate`."""
    network = tiny(family)
    model, read = adapt(network), 1 if family == "t5" else 3
    trie = Trie.of(WORDS, vocabulary=VOCABULARY, specials=model.specials)
    function = trie_function(read)
    batch = make_batch([Example(tuple(row), (), i) for i, row in enumerate(IDS.tolist())], specials=model.specials)
    options: dict[str, Any] = BEST | {"length_penalty": 0.0}
    made = [
        network.generate(IDS, custom_generate=search_by(trie), **options),
        network.generate(IDS, custom_generate=search_by(), prefix_allowed_tokens_fn=function, **options),
        network.generate(IDS, custom_generate=search_by(AllowedByFunction(function, model)), **options),
        network.generate(IDS, prefix_allowed_tokens_fn=function, **options),
        network.generate(IDS, logits_processor=[SuccessorsProcessor(trie, batch, read)], **options),
    ]
    outputs = [[cut(row[read:], [EOS]) for row in sequences.tolist()] for sequences in made]
    assert all(found == outputs[0] for found in outputs)
    assert {*outputs[0]} <= {(*word, EOS) for word in WORDS}


def test_a_function_gets_the_padded_prompts_that_generate_gives_it() -> None:
    """Such functions count the tokens of the prompt: padding on the left belongs to it."""
    network, mask = tiny("gpt2"), torch.tensor([[1, 1, 1], [0, 1, 1]])
    options = BEST | {"attention_mask": mask, "prefix_allowed_tokens_fn": trie_function(3), "length_penalty": 0.0}
    ours = network.generate(IDS, custom_generate=search_by(), **options)
    theirs = network.generate(IDS, **options)
    assert [cut(row[3:], [EOS]) for row in ours.tolist()] == [cut(row[3:], [EOS]) for row in theirs.tolist()]


def test_a_constraint_that_leaves_no_token_is_reported() -> None:
    """After two tokens of a T5's output nothing may follow. transformers ends with an error there."""
    network = tiny("t5")
    options = BEST | {"prefix_allowed_tokens_fn": lambda sentence, ids: [] if len(ids) > 2 else [7, 8]}
    with pytest.warns(UserWarning, match=r"^the constraint left no token in 2 of 2 sources, whose outputs are cut$"):
        found = network.generate(IDS, custom_generate=search_by(), **options)
    assert {token for row in found[::3].tolist() for token in row[1:]} <= {7, 8}  # the best of each source


def test_a_function_is_asked_of_prefixes_that_it_allows_alone() -> None:
    """In a beam that it leaves places in, and in a loss: a table of prefixes has no others, nor what follows an end."""
    network = tiny("t5")
    model, entries = adapt(network), [(*word, EOS) for word in WORDS]
    table: dict[tuple[int, ...], set[int]] = {}
    for entry in entries:
        for length, token in enumerate(entry):
            table.setdefault(entry[:length], set()).add(token)
    asked = AllowedByFunction(lambda _, ids: sorted(table[tuple(ids.tolist()[1:])]), model)
    trie = Trie.of(WORDS, vocabulary=VOCABULARY, specials=model.specials)
    options = BEST | {"num_beams": 8, "num_return_sequences": 8, "length_penalty": 0.0}
    made = [network.generate(IDS, custom_generate=search_by(found), **options) for found in (asked, trie)]
    assert torch.equal(*made)
    examples = [Example((4, 5), entries[1], 0), Example((7,), entries[2], 1)]
    batch = make_batch(examples, specials=model.specials)
    losses = [Bso(found, 3, start_beam=3, rule=LogprobSum()).at(0)(model, batch, None) for found in (asked, trie)]
    assert torch.equal(*(out.total for out in losses))


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_a_model_of_peft_decodes_by_our_search(family: str) -> None:
    from peft import LoraConfig, PrefixTuningConfig, get_peft_model

    kind, targets = ("SEQ_2_SEQ_LM", ["q", "v"]) if family == "t5" else ("CAUSAL_LM", ["q_proj", "v_proj"])
    lora = LoraConfig(task_type=kind, target_modules=targets, r=2, init_lora_weights=False)
    network = get_peft_model(tiny(family), lora).double().eval()
    options = BEST | {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "suppress_tokens": [PAD]}
    ours, theirs = (network.generate(custom_generate=decode, **options) for decode in (search_by(), None))
    assert ours.shape == theirs.shape
    read = 1 if family == "t5" else 3
    assert [cut(row[read:], [EOS]) for row in ours.tolist()] == [cut(row[read:], [EOS]) for row in theirs.tolist()]
    prefixed = get_peft_model(tiny(family), PrefixTuningConfig(task_type=kind, num_virtual_tokens=2)).double()
    found = refusal(prefixed.generate, error=ConfigError, custom_generate=search_by(), **options)
    assert "is a PrefixTuningConfig; accepted" in found


def test_inputs_that_the_search_does_not_read_are_refused() -> None:
    network, causal = tiny("bart"), tiny("gpt2")

    def refused(network: Any, **options: Any) -> str:
        return refusal(network.generate, custom_generate=search_by(), error=ConfigError, **options)

    vectors = network.get_input_embeddings()(IDS)
    assert "generate(inputs_embeds=...) with argbeam's search; accepted: input_ids" in refused(
        network, inputs_embeds=vectors
    )
    encoded = network.get_encoder()(IDS)
    assert "generate(encoder_outputs=...)" in refused(network, encoder_outputs=encoded)
    assert "generate(token_type_ids=...)" in refused(causal, input_ids=IDS, token_type_ids=IDS)
    cached = causal(IDS[:, :2]).past_key_values
    assert "generate(past_key_values=...)" in refused(causal, input_ids=IDS, past_key_values=cached)
    prompts = torch.tensor([[EOS, 5], [EOS, 7]])
    assert "decoder_input_ids differ by sentence" in refused(network, input_ids=IDS, decoder_input_ids=prompts)


def test_what_the_search_does_not_do_is_refused() -> None:
    network, decode = tiny("gpt2"), search_by()

    def refused(**options: Any) -> str:
        return refusal(network.generate, IDS, custom_generate=decode, error=ConfigError, **options)

    assert "do_sample=True" in refused(do_sample=True)
    assert "NoRepeatNGramLogitsProcessor with argbeam's search; accepted" in refused(no_repeat_ngram_size=2)
    assert "MaxTimeCriteria with argbeam's search; accepted: EosTokenCriteria, Max" in refused(max_time=1.0)
    assert "bad_words_ids of several tokens" in refused(bad_words_ids=[[4], [5, 6]])
    forced = refused(max_new_tokens=1, forced_eos_token_id=EOS)
    assert forced == "max_length = 4: no room for an output beside forced tokens; accepted: 5 or more"
    trie = search_by(Trie.of(WORDS, vocabulary=VOCABULARY))
    call = {"custom_generate": trie, "prefix_allowed_tokens_fn": trie_function(3)}
    assert "one of them is accepted" in refusal(network.generate, IDS, error=ConfigError, **call)
