"""Adapted models of transformers: steps, given tokens, losses and searches against forwards by transformers itself."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from argbeam.data.batches import Example, make_batch
from argbeam.data.vocabulary import BOS, EOS, SpecialTokens
from argbeam.errors import ConfigError, DataError
from argbeam.losses import Bso, CrossEntropy
from argbeam.losses.crf import Crf
from argbeam.losses.replay import shifted
from argbeam.models.huggingface.adapt import adapt, gold_of
from argbeam.models.noise import Noise
from argbeam.search.score_rules import LastScore, LogprobSum
from argbeam.search.stop_rules import StopTop
from argbeam.search.successors import Unconstrained
from loss_oracles import alone, bso_of_one, naive_total, scores_along
from refusals import refusal
from tape import TapeRecorder
from tiny_transformers import FAMILIES, VOCABULARY, FullForward, tiny

every_family = pytest.mark.parametrize("family", FAMILIES)
# Sources of five, one and three tokens.
EXAMPLES = [
    Example((4, 5, 6, 7, 8), (4, 5, 6, 7, EOS), 1),
    Example((8,), (5, EOS), 2),
    Example((5, 4, 4), (7, 7, 8, EOS), 3),
]
ANYTHING = Unconstrained(VOCABULARY, end_symbol=True)
# The norms of these are float32 in any model.
SINGLE = {"t5", "llama", "qwen2", "qwen3"}


def pair(family: str, **other: Any) -> tuple[Any, FullForward]:
    """An adapted model, and the same weights without argbeam."""
    model = tiny(family, **other)
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager" if family == "t5" else "sdpa")
    return adapt(model), FullForward(plain)


def gradients_of(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """Gradients of the weights that are trained: sinusoidal positions are not."""
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    return dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))


@every_family
def test_steps_and_given_tokens_score_as_full_forwards(family: str) -> None:
    """Two rows a sentence, the first of which changes places with the second at every step."""
    model, full = pair(family)
    batch = make_batch(EXAMPLES, size=4, specials=model.specials)
    rows_N, found = torch.arange(8).view(4, 2).flip(1).flatten(), []
    read_TN = torch.randint(4, VOCABULARY, (4, 8), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        state = model.step(model.encode(batch, None), batch.sentence_B).select(torch.arange(8) // 2)
        for read_N in read_TN:
            found.append(model.scores(model.output(state)[None])[0])
            state = model.step(state.select(rows_N), read_N)
        first_1N = torch.zeros_like(read_TN[:1])
        for n in range(6):
            lanes = [n if (3 - t) % 2 == 0 else int(rows_N[n]) for t in range(4)]  # where row n's prefix was at step t
            tokens = tuple(int(read_TN[t, lanes[t]]) for t in range(4))
            expected = scores_along(full, alone(batch, n // 2), None, tokens)
            own_TN = torch.tensor(tokens)[:, None].expand(-1, 8)
            at_once = model.scores(model.unroll(model.encode(batch, None).repeated(2), torch.cat([first_1N, own_TN])))
            for t in range(1, 4):
                stepped = found[t][lanes[t - 1]]
                torch.testing.assert_close(
                    stepped,
                    expected[t],
                    rtol=1e-5 if family in SINGLE else 1e-10,
                    atol=1e-6 if family in SINGLE else 1e-10,
                )
                torch.testing.assert_close(
                    at_once[t, n],
                    expected[t],
                    rtol=1e-5 if family in SINGLE else 1e-10,
                    atol=1e-6 if family in SINGLE else 1e-10,
                )


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_steps_have_the_gradients_of_one_pass_and_a_selection_copies_no_key(family: str) -> None:
    """One row a sentence in the first step, two from the second on."""
    model = adapt(tiny(family))
    batch = make_batch(EXAMPLES, specials=model.specials)
    read_TN = torch.randint(4, VOCABULARY, (4, 6), generator=torch.Generator().manual_seed(2))
    state = model.step(model.encode(batch, None), batch.sentence_B).select(torch.arange(6) // 2)
    outputs = [model.output(state)]
    for read_N in read_TN[1:]:
        state = model.step(state, read_N)
        outputs.append(model.output(state))
    assert {name: tuple(part.shape) for name, part in state.hypothesis.items()} == {"output": (6, 8), "slots": (6, 4)}
    at_once = model.unroll(model.encode(batch, None).repeated(2), read_TN)
    torch.testing.assert_close(torch.stack(outputs), at_once, rtol=1e-5, atol=1e-6)
    stepped, expected = (
        gradients_of(x.square().sum(), model.network.base_model) for x in (torch.stack(outputs), at_once)
    )
    torch.testing.assert_close(stepped, expected, rtol=1e-4, atol=1e-5)


@every_family
@pytest.mark.parametrize("rule", [LastScore(), LogprobSum()], ids=["last_score", "logprob_sum"])
def test_bso_and_its_gradients_are_those_of_rescoring_every_violating_prefix(family: str, rule: Any) -> None:
    """Gold and rival are read in one pass; every prefix of the oracle is a forward of its own."""
    model, full = pair(family)
    batch = make_batch(EXAMPLES, size=4, target_length=6, specials=model.specials)
    out = Bso(ANYTHING, 3, start_beam=3, rule=rule).at(0)(model, batch, None)
    written = [token for token in range(VOCABULARY) if token not in model.specials.unwritten]
    naive = bso_of_one(lambda source: lambda prefix: written, beam=3, margin=1.0, stop=StopTop(), cost=lambda *_: 1.0)
    expected = naive_total(full, batch, None, naive, rule=rule)
    close = {"rtol": 1e-4, "atol": 1e-4} if family in SINGLE else {"rtol": 1e-6, "atol": 1e-8}
    assert out.sums["violations"] > 3
    torch.testing.assert_close(out.total, expected, **close)
    torch.testing.assert_close(gradients_of(out.total, model), gradients_of(expected, full), **close)


@every_family
def test_a_model_in_float32_has_the_loss_and_gradients_of_float64(family: str) -> None:
    """To 1e-4 of their size; with all violations the same."""
    found = []
    for model in (adapt(tiny(family)), adapt(tiny(family).float())):
        batch = make_batch(EXAMPLES, size=4, target_length=6, specials=model.specials)
        out = Bso(ANYTHING, 3, start_beam=3, rule=LogprobSum()).at(0)(model, batch, None)
        gradient = torch.cat([part.flatten() for part in gradients_of(out.total, model).values()])
        found.append((out.total.dtype, out.total.detach().double(), gradient.double(), out.sums["violations"]))
    (_, total, gradient, violations), (dtype, *single) = found
    assert dtype == torch.float32 and single[2] == violations > 3
    torch.testing.assert_close(single[0], total, rtol=1e-4, atol=0)
    assert (single[1] - gradient).norm() < 1e-4 * gradient.norm()


@pytest.mark.parametrize("family", ["t5", "bart", "llama"])
def test_a_model_in_bf16_is_searched_with_scores_in_float32(family: str) -> None:
    """As `generate` does: sums of log-probabilities rounded to bf16 would tie, and the beam would be arbitrary."""
    model = adapt(tiny(family).to(torch.bfloat16))
    batch = make_batch(EXAMPLES, specials=model.specials)
    loss = Bso(ANYTHING, 3, start_beam=3, rule=LogprobSum()).at(0)
    out = loss(model, batch, None)
    assert out.total.dtype == torch.float32 and out.total.isfinite()
    with torch.no_grad():
        state = model.step(model.encode(batch, None), batch.sentence_B)
        assert model.scores(model.output(state)[:, None]).dtype == torch.float32


@every_family
def test_a_training_step_asks_nothing_of_the_host(family: str) -> None:
    """As on a GPU, where it is captured in a graph: no value is read, nothing is copied from the host."""
    model = adapt(tiny(family))
    batch, loss = make_batch(EXAMPLES, specials=model.specials), Bso(ANYTHING, 3, start_beam=3, rule=LogprobSum()).at(0)
    noise = Noise(1, torch.tensor(0), batch.sentence_B)
    expected = loss(model, batch, noise).total.detach()
    with TapeRecorder().record() as tape:  # raises where the host would read a value
        total = loss(model, batch, noise).total
        total.backward()
    tape.replay()
    torch.testing.assert_close(total.detach(), expected)


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_other_losses_take_adapted_models(family: str) -> None:
    """Cross-entropy against transformers' own, and the CRF with restarts, whose pairs are beams beside gold."""
    model, full = pair(family)
    batch = make_batch(EXAMPLES[:1], specials=model.specials)
    labels = torch.tensor([EXAMPLES[0].target])
    ids = torch.tensor([EXAMPLES[0].source])
    if family == "t5":
        expected = full.network(input_ids=ids, labels=labels).loss * 5
    else:
        ignored = torch.full_like(ids, -100)
        expected = full.network(input_ids=torch.cat([ids, labels], 1), labels=torch.cat([ignored, labels], 1)).loss * 5
    torch.testing.assert_close(CrossEntropy()(model, batch, None).total, expected.double(), rtol=1e-5, atol=1e-6)
    crf = Crf(ANYTHING, 3, start_beam=3, restarts=True).at(0)(model, batch, None)
    assert crf.total.isfinite() and crf.total.requires_grad


@pytest.mark.parametrize("family", ["bart", "m2m100"])
def test_a_decoder_prompt_of_two_tokens_is_read_before_the_output(family: str) -> None:
    """A start symbol and a language code: scores as those of a forward with both before the output."""
    model = adapt(tiny(family), decoder_prompt=(EOS, 7))
    plain = tiny(family)
    batch = make_batch(EXAMPLES, specials=model.specials)
    with torch.no_grad():
        loss = Bso(ANYTHING, 2, rule=LogprobSum()).at(0)
        assert loss(model, batch, None).total.isfinite()
        state = model.step(model.encode(batch, None), batch.sentence_B)
        state = model.step(state, batch.target_BT[:, 0])
        read = torch.tensor([[EOS, 7, EXAMPLES[0].target[0]]])
        expected = plain(input_ids=torch.tensor([EXAMPLES[0].source]), decoder_input_ids=read).logits[0, -1]
        torch.testing.assert_close(model.scores(model.output(state)[None])[0, 0], expected, rtol=1e-9, atol=1e-9)


def test_gold_leaves_out_the_decoder_prompt_and_what_follows_the_end() -> None:
    model = adapt(tiny("mbart"), decoder_prompt=(EOS, 7))
    assert gold_of([7, 4, 5, EOS, 7], model) == (4, 5, EOS)
    assert gold_of([4, 5], model) == (4, 5, EOS)


def test_special_tokens_are_those_of_generation() -> None:
    """BART's and Llama's own: a forced first token; several ends, no padding, a token that is suppressed."""
    bart = tiny("bart", bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2)
    bart.generation_config.forced_bos_token_id = 0
    model = adapt(bart)
    assert (model.decoder_prompt, model.specials) == (
        (2, 0),
        SpecialTokens(pad=1, unk=None, bos=2, ends=(2,), unwritten=(1,)),
    )
    llama = tiny("llama", bos_token_id=1, pad_token_id=None, eos_token_id=[2, 5])
    llama.generation_config.suppress_tokens = [7]
    assert adapt(llama).specials == SpecialTokens(pad=2, unk=None, bos=1, ends=(2, 5), unwritten=(7,))
    llama.generation_config.suppress_tokens = [2]
    assert adapt(llama).specials == SpecialTokens(pad=2, unk=None, bos=1, ends=(5,), unwritten=(2,))
    llama.generation_config.suppress_tokens = [5, 2]
    assert "suppress_tokens has all end symbols (2, 5)" in refusal(adapt, llama, error=ConfigError)
    llama.generation_config.eos_token_id = llama.config.eos_token_id = None
    assert "without eos_token_id" in refusal(adapt, llama, error=ConfigError)


def test_settings_of_generate_that_no_search_of_ours_has_are_reported() -> None:
    bart = tiny("bart")
    bart.generation_config.no_repeat_ngram_size, bart.generation_config.min_length = 3, 0
    bart.generation_config.do_sample, bart.generation_config.begin_suppress_tokens = True, []
    with pytest.warns(UserWarning, match="generation_config has do_sample, no_repeat_ngram_size: generate applies it"):
        adapt(bart)


@pytest.mark.parametrize("family", ["t5", "bart", "gpt2"])
def test_dropout_is_one_mask_a_position_in_steps_and_in_one_pass(family: str) -> None:
    """Replayed scores are the searched ones, and the noise of a sentence is all that they depend on."""
    rates = {"resid_pdrop": 0.5, "embd_pdrop": 0.5} if family == "gpt2" else {"dropout": 0.5, "dropout_rate": 0.5}
    model = adapt(tiny(family, **rates))
    batch, loss = make_batch(EXAMPLES, specials=model.specials), Bso(ANYTHING, 3, start_beam=3, rule=LogprobSum()).at(0)
    noise = Noise(1, torch.tensor(0), batch.sentence_B)
    out, quiet = loss(model, batch, noise), loss(model, batch, None)
    assert out.sums["violations"] > 3 and out.sums["replay_differs"] == 0
    assert abs(out.total - quiet.total) > 0.1
    alone = make_batch(EXAMPLES[2:], size=2, target_length=7, specials=model.specials)
    rest = make_batch(EXAMPLES[:2], specials=model.specials)
    parts = [loss(model, part, replace(noise, sentence_B=part.sentence_B)).total for part in (alone, rest)]
    torch.testing.assert_close(sum(parts), out.total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("family", "targets"), [("t5", ["q", "v"]), ("bart", ["k_proj", "v_proj", "fc1"])])
def test_dropout_of_adapters_in_cross_attention_is_the_same_in_search_and_replay(
    family: str, targets: list[str]
) -> None:
    """Keys of the source, of other precision than the adapters, are computed in the first step alone."""
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(target_modules=targets, r=2, lora_dropout=0.5, init_lora_weights=False)
    model = adapt(get_peft_model(tiny(family, dropout=0.0, dropout_rate=0.0), settings))
    batch, loss = make_batch(EXAMPLES, specials=model.specials), Bso(ANYTHING, 3, start_beam=3, rule=LogprobSum()).at(0)
    out, quiet = loss(model, batch, Noise(1, torch.tensor(0), batch.sentence_B)), loss(model, batch, None)
    assert out.sums["violations"] > 3 and out.sums["replay_differs"] == 0
    assert abs(out.total - quiet.total) > 0.1


def test_an_mt5_is_a_t5() -> None:
    from transformers import MT5Config, MT5ForConditionalGeneration

    other = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    t5 = tiny("t5", **other)
    mt5 = MT5ForConditionalGeneration(MT5Config(**FAMILIES["t5"][2] | other)).double().eval()
    mt5.load_state_dict(t5.state_dict())
    loss, model = Bso(ANYTHING, 3, start_beam=3, rule=LogprobSum()).at(0), adapt(t5)
    batch = make_batch(EXAMPLES, specials=model.specials)
    assert torch.equal(loss(adapt(mt5), batch, None).total, loss(model, batch, None).total)


@pytest.mark.parametrize("family", ["gpt2", "qwen3"])
def test_a_prompt_that_is_read_again_changes_no_loss_and_no_gradient(family: str) -> None:
    """With gold and rival side by side and with gold alone; sources of five, one and three tokens; with dropout."""
    model = adapt(tiny(family))
    batch = make_batch(EXAMPLES, specials=model.specials)
    noise = Noise(1, torch.tensor(0), batch.sentence_B)
    for loss in (Bso(ANYTHING, 3, start_beam=3, rule=LogprobSum()).at(0), CrossEntropy()):
        found = []
        for model.prompt_again in (False, True):
            total = loss(model, batch, noise).total
            found.append((total.detach(), gradients_of(total, model)))
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_padding_needs_no_position_of_a_model_that_has_few() -> None:
    """Every sentence has five positions; the longest source and the longest target together have eight."""
    examples = [Example((4, 5, 6, 7, 8), (4, EOS), 0), Example((4,), (5, 6, 7, 8, EOS), 1)]
    many, few, name = tiny("gpt2"), tiny("gpt2", n_positions=6), "transformer.wpe.weight"
    few.load_state_dict({**many.state_dict(), name: many.state_dict()[name][:6]})
    loss, found = Bso(ANYTHING, 3, start_beam=3, rule=LogprobSum()).at(0), []
    for model in (adapt(few), adapt(many)):
        batch = make_batch(examples, specials=model.specials)
        found.append(loss(model, batch, None).total)
    torch.testing.assert_close(*found)
    model = adapt(tiny("bart", max_position_embeddings=4))
    call = lambda: model.encode(make_batch(examples, specials=model.specials), None)  # noqa: E731
    assert "a sentence of 5 tokens; bart has 4 positions" in refusal(call, error=DataError)


def test_a_network_in_training_mode_without_noise_runs_without_dropout_and_says_so() -> None:
    model = adapt(tiny("t5", dropout_rate=0.5))
    batch, loss = make_batch(EXAMPLES, specials=model.specials), CrossEntropy()
    quiet = loss(model, batch, None).total
    model.train()
    with pytest.warns(UserWarning, match="without dropout"):
        assert loss(model, batch, None).total == quiet


def test_layers_that_are_not_supported_are_refused_by_name() -> None:
    from transformers import BertConfig, BertLMHeadModel

    sliding = tiny("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1)
    assert "has layers of sliding_attention" in refusal(adapt, sliding, error=ConfigError)
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    other = BertLMHeadModel(BertConfig(vocab_size=9, is_decoder=True, **small))
    assert "model BertLMHeadModel is not supported; accepted: T5" in refusal(adapt, other, error=ConfigError)
    crossing = tiny("gpt2", add_cross_attention=True)
    assert "with add_cross_attention" in refusal(adapt, crossing, error=ConfigError)
    varying = tiny("llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    assert "has rope_type 'dynamic', which varies with the length" in refusal(adapt, varying, error=ConfigError)
    # As transformers marks a model that it has loaded in 8 bits.
    quantised = tiny("llama")
    quantised.is_quantized, quantised.quantization_method = True, "bitsandbytes"
    assert "with quantised weights (bitsandbytes); accepted" in refusal(adapt, quantised, error=ConfigError)


def test_lora_is_trained_and_prompt_tuning_is_refused() -> None:
    from peft import AdaptionPromptConfig, LoraConfig, PromptTuningConfig, get_peft_model

    lora = get_peft_model(tiny("llama"), LoraConfig(target_modules=["q_proj", "v_proj"], r=2, init_lora_weights=False))
    model, merged = adapt(lora.double()), copy.deepcopy(lora).double().merge_and_unload()
    batch = make_batch(EXAMPLES, specials=model.specials)
    loss = Bso(ANYTHING, 3, start_beam=3).at(0)
    total = loss(model, batch, None).total
    torch.testing.assert_close(total, loss(adapt(merged), batch, None).total, rtol=1e-9, atol=1e-9)
    total.backward()
    trained = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert trained == {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert all("lora_" in name for name in trained)
    soft = get_peft_model(tiny("llama"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    assert "is a PromptTuningConfig; accepted" in refusal(adapt, soft, error=ConfigError)
    prompts = get_peft_model(
        tiny("llama"), AdaptionPromptConfig(task_type="CAUSAL_LM", adapter_len=2, adapter_layers=1)
    )
    assert "is a AdaptionPromptConfig; accepted" in refusal(adapt, prompts, error=ConfigError)
    added = tiny("llama")
    added.add_adapter(
        LoraConfig(target_modules=["q_proj", "v_proj"], r=2)
    )  # of transformers' own, without an effect yet
    found = [loss(adapt(one.double()), batch, None).total for one in (added, tiny("llama"))]
    torch.testing.assert_close(*found)


def test_outside_of_argbeam_attention_is_ordinary() -> None:
    """Padded sources and a cache, as in `generate`: the same outputs as before `adapt`."""
    model = tiny("bart")
    ids = torch.tensor([[4, 5, 6], [7, 0, 0]])
    before = model.generate(ids, attention_mask=(ids != 0).long(), num_beams=3, max_new_tokens=6)
    adapt(model)
    assert torch.equal(model.generate(ids, attention_mask=(ids != 0).long(), num_beams=3, max_new_tokens=6), before)


@every_family
def test_attention_is_that_of_a_full_forward_of_the_sentence_alone(family: str) -> None:
    """The last layer's weights over the source as transformers returns them; padding has none, and searches go on."""
    model, full = pair(family)
    full.network.set_attn_implementation("eager")
    batch = make_batch(EXAMPLES, specials=model.specials)
    read_BT = shifted(batch.target_BT, BOS)
    with torch.no_grad():
        before = model.scores(model.output(model.step(model.encode(batch, None), read_BT[:, 0]))[None])
        found_BTS = model.attention(batch, read_BT)
        for example, found_TS in zip(EXAMPLES, found_BTS, strict=True):
            source_1S, length = torch.tensor([example.source]), len(example.target)
            read_1T = shifted(torch.tensor([example.target]), BOS)
            if full.network.config.is_encoder_decoder:
                weights = full.network(input_ids=source_1S, decoder_input_ids=read_1T, output_attentions=True)
                expected_TS = weights.cross_attentions[-1][0].mean(0)
            else:
                whole_1X = torch.cat([source_1S, read_1T[:, 1:]], 1)
                weights = full.network(input_ids=whole_1X, output_attentions=True)
                expected_TS = weights.attentions[-1][0].mean(0)[-length:, : len(example.source)]
            torch.testing.assert_close(found_TS[:length, : len(example.source)], expected_TS, rtol=0, atol=1e-6)
            assert not found_TS[:, len(example.source) :].any()
        after = model.scores(model.output(model.step(model.encode(batch, None), read_BT[:, 0]))[None])
    assert torch.equal(after, before)
