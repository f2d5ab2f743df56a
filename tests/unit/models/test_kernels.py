"""Every kernel against its plain torch twin, on the CPU by Triton's interpreter."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="kernels need Triton, which is not made for this platform")

from argbeam.data.batches import Batch, Example, make_batch
from argbeam.data.vocabulary import BOS, EOS
from argbeam.losses import CrossEntropy, StepLoss, replay_kernel
from argbeam.losses import bso as bso_loss
from argbeam.losses.bso import Bso, hinge_loss, one_minus_bleu
from argbeam.losses.replay import Replayed, lanes, since_restart
from argbeam.models import LstmSeq2Seq, Transformer, TransformerLm
from argbeam.models.attention.cache import Cache, as_bias, attend
from argbeam.models.attention.step_kernel import attend_to_slots, attend_to_source
from argbeam.models.noise import Noise
from argbeam.models.noise_kernel import dropout_mask
from argbeam.models.recurrence import attention_kernel as attention
from argbeam.models.recurrence import cell_kernel
from argbeam.models.recurrence.contract import Attended, CellBack, CellIn, CombineBack, TokenVectors
from argbeam.models.recurrence.kernel_steps import KernelSteps
from argbeam.models.recurrence.steps import PlainSteps
from argbeam.runtime import device as devices
from argbeam.search import fused_step_kernel as search_step
from argbeam.search import permutation_kernel as permutation
from argbeam.search.constraints import trie as tries
from argbeam.search.constraints.trie import Trie
from argbeam.search.gold import GoldToken, MaxViolation, Restart, gold_step, segment_tokens
from argbeam.search.result import Beam, Beams, StepMemory, Violations, stacked
from argbeam.search.score_rules import NEVER, LastScore, LogprobSum, ScoreRule, ScoreSum
from argbeam.search.stop_rules import Stop, StopTop
from argbeam.search.successors import Permutation, Unconstrained
from argbeam.search.top_k import AllScores, best_columns, best_columns_by_kernel
from argbeam.training import adagrad_kernel
from argbeam.training.optimizer import Adagrad
from loss_cases import score, small_lstm
from tape import as_on_a_device

# What is sent here runs on a GPU where there is one, and by the interpreter elsewhere.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# These have tensors on the CPU; with a GPU the tests marked `gpu` compare the same kernels with plain torch.
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "device", "capability", "expected"),
    [
        (torch.float32, 1, (9, 0), True),
        (torch.int64, 1, (8, 6), True),
        (torch.float64, 1, (9, 0), False),
        (torch.float32, 0, (9, 0), False),
        (torch.float32, 1, (7, 5), False),
    ],
    ids=["float32", "whole", "float64", "another device", "old device"],
)
def test_what_kernels_take(
    dtype: torch.dtype, device: int, capability: tuple[int, int], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are launched on the current device, here the second; a tensor elsewhere would be out of reach."""
    devices._recent.cache_clear()
    monkeypatch.setattr(devices, "_KERNELS_WANTED", True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    tensor: Any = SimpleNamespace(is_cuda=True, dtype=dtype, device=torch.device("cuda", device))
    assert devices.kernels_usable(tensor) == expected
    assert not devices.kernels_usable(tensor, torch.zeros(1, dtype=dtype))
    devices._recent.cache_clear()


# Sentences, rows of each, units, words: nothing is a multiple of a block.
SIZES = [(3, 2, 20, 5), (2, 7, 33, 17), (9, 1, 16, 3)]


@pytest.mark.parametrize(("sentences", "lanes", "hidden", "words"), SIZES)
@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("moved", [False, True])
@interpreted
def test_the_parts_of_a_step(sentences: int, lanes: int, hidden: int, words: int, noise: bool, moved: bool) -> None:
    generator = torch.Generator().manual_seed(hidden)
    draw, rows = partial(torch.randn, generator=generator), sentences * lanes
    # Noise comes as one step of a longer mask, weights as columns of a wider matrix, carried values likewise.
    mask_BH = (torch.rand(sentences, 3, hidden, generator=generator) < 0.7).float()[:, 1] / 0.7 if noise else None
    rows_N = torch.randint(0, rows, (rows,), generator=generator) if moved else None
    merged_B = torch.rand(sentences, generator=generator) < 0.5 if lanes == 2 and moved else None

    given: dict[str, Any] = {
        "base_NG": draw(rows, 4 * hidden) if moved else draw(4 * hidden),
        "h_NH": draw(rows, hidden),
        "c_NH": draw(rows, hidden),
        "recurrent_GH": draw(4 * hidden, hidden),
        "rows_N": rows_N,
    }
    tokens = TokenVectors(torch.randint(0, 9, (rows,), generator=generator), draw(9, 11))
    weight_GI = draw(4 * hidden, 2 * hidden + 11)
    fed = {"fed_NA": draw(rows, hidden), "fed_moves": not noise, "fed_noise_BA": mask_BH}
    for inputs in (
        {},
        {**fed, "input_GI": weight_GI[:, hidden + 11 :]},
        {"tokens": tokens, "input_GI": weight_GI[:, :11]},
        {**fed, "tokens": tokens, "input_GI": weight_GI[:, hidden:]},
    ):
        assert_close(KernelSteps.cell(CellIn(**given, **inputs)), PlainSteps.cell(CellIn(**given, **inputs)))
    back: dict[str, Any] = {
        "grad_h_NH": draw(rows, 2 * hidden)[:, hidden:],
        "grad_h_noise_BH": mask_BH,
        "carried_h_NH": draw(rows, 2 * hidden)[:, hidden:],
        "carried_c_NH": draw(rows, hidden),
        "grad_c_NH": draw(rows, hidden) if noise else None,
        "merged_B": merged_B,
        "gates_NG": draw(rows, 4 * hidden).sigmoid(),
        "c_NH": draw(rows, hidden),
        "before_NH": draw(rows, hidden),
        "rows_N": rows_N,
        "weight_GX": draw(4 * hidden, 2 * hidden),
    }
    both = KernelSteps, PlainSteps
    gates = [torch.empty(rows, 4 * hidden) for _ in both]
    assert_close(*(s.cell_backward(CellBack(**back, gates_out_NG=out)) for s, out in zip(both, gates, strict=True)))
    assert_close(*gates)

    query_NH, keys_BSH, memory_BSH = draw(rows, hidden), draw(sentences, words, hidden), draw(sentences, words, hidden)
    length_B = torch.randint(1, words + 1, (sentences,), generator=generator)
    attended = Attended(keys_BSH, memory_BSH, torch.arange(words) >= length_B[:, None])
    context_NH, weight_NS = PlainSteps.attention(query_NH, attended)
    assert_close(KernelSteps.attention(query_NH, attended), (context_NH, weight_NS))
    match = [torch.empty(rows, words) for _ in both]
    back_of = (draw(rows, 2 * hidden), attended, weight_NS)
    assert_close(*(s.attention_backward(*back_of, out) for s, out in zip(both, match, strict=True)))
    assert_close(*match)

    combine_HX = draw(hidden, 2 * hidden)
    plain = PlainSteps.combine(context_NH, query_NH, combine_HX, mask_BH)
    assert_close(KernelSteps.combine(context_NH, query_NH, combine_HX, mask_BH), plain)
    total = [torch.empty(rows, hidden) for _ in both]
    arguments = (draw(rows, hidden), draw(rows, 2 * hidden)[:, :hidden], merged_B, plain.plain_NH, mask_BH, combine_HX)
    assert_close(*(s.combine_backward(CombineBack(*arguments, out)) for s, out in zip(both, total, strict=True)))
    assert_close(*total)


@pytest.mark.parametrize(("sentences", "lanes", "hidden", "vectors"), [(2, 17, 33, 11), (3, 5, 16, 32)])
@interpreted
def test_a_cell_whose_gates_are_one_product(
    sentences: int, lanes: int, hidden: int, vectors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that rows and units do not fill, and depths that do and do not fill theirs; moved with what is fed or
    not, with noise or not, and without tokens, without what is fed, without both."""
    tiles = cell_kernel.Tiles(16, 16, 16, 4, joint=True)
    monkeypatch.setattr(cell_kernel, "_tiles", lambda *_: tiles)
    generator = torch.Generator().manual_seed(hidden)
    draw, rows = partial(torch.randn, generator=generator), sentences * lanes
    mask_BH = (torch.rand(sentences, 3, hidden, generator=generator) < 0.7).float()[:, 1] / 0.7
    tokens = TokenVectors(torch.randint(0, 9, (rows,), generator=generator), draw(9, vectors))
    weight_GI = draw(4 * hidden, 2 * hidden + vectors)
    given = CellIn(draw(4 * hidden), draw(rows, hidden), draw(rows, hidden), draw(4 * hidden, hidden))
    moved = given._replace(base_NG=draw(rows, 4 * hidden), rows_N=torch.randint(0, rows, (rows,), generator=generator))
    fed: dict[str, Any] = {"fed_NA": draw(rows, hidden), "input_GI": weight_GI[:, hidden + vectors :]}
    both = {**fed, "tokens": tokens, "input_GI": weight_GI[:, hidden:]}
    for case in (
        given,
        given._replace(tokens=tokens, input_GI=weight_GI[:, :vectors]),
        given._replace(**fed),
        given._replace(**both, fed_noise_BA=mask_BH),
        moved._replace(**both),
        moved._replace(**both, fed_noise_BA=mask_BH),
        moved._replace(**both, fed_noise_BA=mask_BH, fed_moves=False),
    ):
        assert_close(cell_kernel.cell(case), PlainSteps.cell(case))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("seed", "update", "steps", "width", "rate"), [(1, 7, 3, 5, 0.3), (2**62, 2**33, 2, 1030, 0.8)]
)
@interpreted
def test_masks_of_the_kernel_are_those_of_plain_torch(
    seed: int, update: int, steps: int, width: int, rate: float, dtype: torch.dtype
) -> None:
    """To the bit, whatever the sizes of seed, update and sentence."""
    noise = Noise(seed, torch.tensor(update), torch.tensor([0, 3, 2**31 + 5]))
    expected_BTH = noise.mask(0x21, steps=steps, width=width, rate=rate, dtype=dtype)
    key = (noise.sentence_B, noise.update, noise._seed, 0x21)
    below, kept = int(rate * 2**32), 1 / (1 - rate)
    found_BTH = dropout_mask(*key, steps=steps, width=width, below=below, kept=kept, dtype=dtype)
    assert torch.equal(found_BTH, expected_BTH)
    assert 0 < (found_BTH > 0).sum() < found_BTH.numel()


@pytest.mark.parametrize(
    ("kind", "rotary", "low"),
    [(Transformer, False, False), (Transformer, False, True), (Transformer, True, True), (TransformerLm, True, False)],
    ids=["float32", "bf16", "rotary, bf16", "prompt, rotary"],
)
def test_a_transformer_s_steps_by_kernels_are_the_plain_ones(
    kind: type[Transformer | TransformerLm], rotary: bool, low: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps of rows that change places, with dropout, of widths that fill no block."""
    sizes = {"layers": 1, "hidden": 20, "heads": 2, "feed_forward": 70, "rotary": rotary}
    model = kind(source_vocabulary=9, target_vocabulary=9, dropout=0.3, **sizes).to(DEVICE)
    model.initialise(bound=0.3, generator=torch.Generator().manual_seed(1))
    batch = make_batch([Example((4, 5, 6), (4,) * 3, 3), Example((7,), (5,), 5)]).to(DEVICE)
    draw = torch.Generator().manual_seed(2)
    rows_TN = torch.randint(2, (3, 4), generator=draw) + torch.tensor([0, 0, 2, 2])
    tokens_TN = torch.randint(9, (3, 4), generator=draw)
    update, found = torch.tensor(4, device=DEVICE), []
    with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16, enabled=low):
        for usable in (False, True):
            state = model.encode(batch, Noise(3, update, batch.sentence_B)).repeated(2)
            with monkeypatch.context() as patched:
                patched.setattr(devices, "kernels_usable", lambda *_, usable=usable: usable)
                for rows_N, tokens_N in zip(rows_TN.to(DEVICE), tokens_TN.to(DEVICE), strict=True):
                    state = model.step_from(state, rows_N, tokens_N, None)
            found.append((state.hypothesis["slots"], model.output(state)))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[1][1], found[0][1], rtol=0, atol=0.05 if low else 1e-4)


def test_attention_to_more_slots_and_a_longer_prompt_than_a_block_has() -> None:
    """One of two rows of each of two sentences has its 19 tokens in every third slot, the other in the last ones."""
    draw = torch.Generator().manual_seed(1)
    prompt_BS = torch.arange(18) < torch.tensor([[18], [3]])
    qkv_NY, memory_BAX = torch.randn(4, 60, generator=draw), torch.randn(2, 90, 40, generator=draw)
    slots_NT = 18 + torch.stack([torch.arange(0, 57, 3), torch.arange(36, 55)] * 2)
    slots_NT[:, -1] = torch.tensor([80, 81, 80, 81])
    qkv_NY, memory_BAX, slots_NT, prompt_BS = (x.to(DEVICE) for x in (qkv_NY, memory_BAX, slots_NT, prompt_BS))
    copy_BAX = memory_BAX.clone()
    found_NH = attend_to_slots(qkv_NY, memory_BAX, slots_NT, prompt_BS, used=80, heads=2)
    copy_BAX[:, 80:82] = qkv_NY[:, 20:].view(2, 2, 40)
    assert torch.equal(memory_BAX, copy_BAX)
    cache = Cache([], prompt_BS, used=80, steps=0)
    bias_NA = cache.bias(slots_NT, torch.arange(4, device=DEVICE) // 2, slots=90, dtype=torch.float32)
    expected_BRH = attend(qkv_NY[:, :20].view(2, 2, 20), copy_BAX, bias_NA.view(2, 2, 90), 2)
    assert_close(found_NH, expected_BRH.flatten(0, 1))


def test_attention_to_a_longer_source_and_a_wider_beam_than_a_block_has() -> None:
    """Sources of 70 tokens and of one, 18 rows each; a third sentence, all padding, gets zeros."""
    draw = torch.Generator().manual_seed(1)
    seen_BS = (torch.arange(70) < torch.tensor([[70], [1], [0]])).to(DEVICE)
    query_NH = torch.randn(3 * 18, 20, generator=draw).to(DEVICE)
    memory_BSX = torch.randn(3, 70, 40, generator=draw).to(DEVICE)
    bias_B1S = as_bias(seen_BS, torch.float32)[:, None]
    found_BRH = attend_to_source(query_NH, memory_BSX, bias_B1S, heads=2).view(3, 18, 20)
    assert_close(found_BRH[:2], attend(query_NH.view(3, 18, 20)[:2], memory_BSX[:2], bias_B1S[:2], 2))
    assert not found_BRH[2].any()


# Beam, columns: a beam of one, more places than candidates, and rows that are long enough to be searched by blocks.
SEARCHES = [(1, 5), (4, 3), (6, 40), (3, 1100)]
RULES = {"last_score": LastScore(), "score_sum": ScoreSum(), "logprob_sum": LogprobSum()}
STOPS: dict[str, Stop | None] = {"fixed": None, "top": StopTop()}  # `best` is as fixed length here
STARTS = [(0, False), (1, False), (1, True)]  # seed, whether it is the first step
# Any three of these choices meet.
STEPS = [
    pytest.param(
        *SEARCHES[a], bool(b), RULES[rule], STOPS[stop], *STARTS[(a + b + c + d) % 3], id=f"{a}-{b}-{rule}-{stop}"
    )
    for a in range(4)
    for b in range(2)
    for c, rule in enumerate(RULES)
    for d, stop in enumerate(STOPS)
]


@pytest.mark.parametrize(("beam_size", "columns", "listed", "rule", "stop", "seed", "first"), STEPS)
@interpreted
def test_a_step_of_the_search(
    beam_size: int, columns: int, listed: bool, rule: ScoreRule, stop: Stop | None, seed: int, first: bool
) -> None:
    """The same successors, verdict and next beam as the plain step; what is in empty places does not matter."""
    restarts = first or seed == 0
    generator = torch.Generator().manual_seed(seed)
    batch, lanes = 3, beam_size + 1

    def chance(share: float, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator) < share

    scores_BRC = torch.randn(batch, lanes, columns, generator=generator)
    allowed_NC = chance(0.02 if columns > 1000 and seed else 0.7, batch * lanes if listed else 1, columns)
    candidates_BRC = None
    gold_B = torch.randint(0, columns, (batch,), generator=generator)
    if listed:
        lists = (batch, lanes if seed else 1)  # of each sentence, or of each row
        candidates_BRC = torch.rand(*lists, columns, generator=generator).argsort(2) + EOS
        gold_B = candidates_BRC[:, -1].gather(1, gold_B[:, None])[:, 0]
    place_K = torch.arange(beam_size)
    start_BK = torch.zeros(batch, beam_size).masked_fill(place_K > 0, NEVER)
    score_BK = torch.randn(batch, beam_size, generator=generator)
    is_gold_BK = (place_K == torch.randint(0, beam_size, (batch, 1), generator=generator)) & chance(0.7, batch, 1)
    gold_score_B1 = torch.randn(batch, 1, generator=generator)
    start = Beam(start_BK, (place_K == 0).expand(batch, -1), gold_score_B1[:, 0])
    beam = start if first else Beam(score_BK, is_gold_BK, gold_score_B1[:, 0])
    policy = Restart(1.0, 0.3) if restarts else MaxViolation(1.0)
    ends = ((EOS, EOS + 1) if seed else (EOS,)) if stop is not None and stop.ended_gives_up_place else ()
    gold = GoldToken(policy, ends, gold_B, chance(0.9, batch), chance(0.4, batch))
    normalise = rule.normalised and not listed  # a list of candidates is normalised before
    scores = AllScores(rule, scores_BRC, candidates_BRC, raw=normalise)
    plain, verdict = gold_step(beam, scores, allowed_NC, gold, start)

    if seed:  # any layout will do
        scores_BRC, allowed_NC = scores_BRC.mT.contiguous().mT, allowed_NC.T.contiguous().T
        candidates_BRC = None if candidates_BRC is None else candidates_BRC.mT.contiguous().mT
    step, judged = search_step.search_step(
        beam, scores_BRC, candidates_BRC, allowed_NC, gold, StepMemory(2), 1, sums=rule.adds_up, normalise=normalise
    )
    best, expected = step.successors, plain.successors
    there_BJ = expected.scores_BJ > NEVER
    assert_close(best.scores_BJ, expected.scores_BJ)
    assert_close(step.beam.gold_score_B, verdict.gold_score_B)
    assert_close(step.beam.score_BK, plain.beam.score_BK)
    for name in ("gold_score_B", "rival_score_B", "violation_B", "rival_ended_B", "gold_on_beam_B"):
        assert_close(getattr(judged, name), getattr(verdict, name))
    assert torch.equal(best.tokens_BJ[there_BJ], expected.tokens_BJ[there_BJ])
    assert torch.equal(best.parents_BJ[there_BJ], expected.parents_BJ[there_BJ])
    for name in ("rival_B", "rival_is_gold_B"):
        assert torch.equal(getattr(judged, name)[verdict.violation_B], getattr(verdict, name)[verdict.violation_B])
    alive_BK = plain.beam.score_BK > NEVER
    alive_N = torch.cat([alive_BK, torch.ones(batch, 1, dtype=torch.bool)], 1).flatten()  # gold's row always is
    assert torch.equal(step.rows_N[alive_N], plain.rows_N[alive_N])
    assert torch.equal(step.tokens_N[alive_N], plain.tokens_N[alive_N])
    assert torch.equal(step.beam.is_gold_BK[alive_BK], plain.beam.is_gold_BK[alive_BK])


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("masks", [(1, 1), (3, 1), (3, 2)], ids=["of all", "of a sentence", "of a row"])
@pytest.mark.parametrize("columns", [1024, 1111])
def test_the_best_valid_columns(columns: int, masks: tuple[int, int], normalise: bool) -> None:
    """Those of masked scores, or of masked log-probabilities, which are normalised over masked tokens too."""
    generator = torch.Generator().manual_seed(columns)
    scores_BKC = torch.randn(3, 2, columns, generator=generator)
    allowed_BKC = torch.rand(*masks, columns, generator=generator) < 0.3
    allowed_BKC[0, 0, columns - columns % 64 :] = True  # the remainder behind the last whole block
    scores_BKC[0, 0, -1] = 9.0
    logprobs_BKC = scores_BKC.double().log_softmax(2).float() if normalise else scores_BKC
    values_BKP, columns_BKP = best_columns(torch.where(allowed_BKC, logprobs_BKC, NEVER), 5)
    scores_BKC, allowed_BKC = (x_BKC.mT.contiguous().mT.to(DEVICE) for x_BKC in (scores_BKC, allowed_BKC))
    found = best_columns_by_kernel(scores_BKC, allowed_BKC, 5, normalise=normalise)
    assert_close(found[0].cpu(), values_BKP)
    assert torch.equal(found[1].cpu(), columns_BKP)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("place", [0, 700, 1023, 1060])
def test_a_score_that_is_not_a_number_shows_in_decoding(place: int, normalise: bool) -> None:
    """Wherever it stands; tokens that are not allowed stay without a score, and another row is as it was."""
    scores_BKC = torch.randn(1, 2, 1088, generator=torch.Generator().manual_seed(3))
    scores_BKC[0, 0, place] = torch.nan
    allowed_1C = torch.zeros(1, 1, 1088, dtype=torch.bool)
    allowed_1C[..., [0, 1, 700, 1023, 1060]] = True
    found_BKP, _ = best_columns_by_kernel(scores_BKC.to(DEVICE), allowed_1C.to(DEVICE), 7, normalise=normalise)
    assert found_BKP[0, 0].isnan().any()
    assert (found_BKP[0, :, 5:] == NEVER).all()
    assert found_BKP[0, 1, :5].isfinite().all()


@interpreted
def test_scores_that_are_not_numbers_lead_nowhere_outside() -> None:
    """Rows and tokens must exist, whatever the scores: the next step reads from there."""
    yes_B = torch.ones(2, dtype=torch.bool)
    beam = Beam(torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool), torch.zeros(2))
    memory = StepMemory(1)
    gold = GoldToken(Restart(1.0), (), torch.tensor([1, 2]), yes_B, ~yes_B)
    allowed_1C = torch.ones(1, 7, dtype=torch.bool)
    step, _ = search_step.search_step(
        beam, torch.full((2, 4, 7), torch.nan), None, allowed_1C, gold, memory, 0, sums=False
    )
    assert step.rows_N.min() >= 0 and step.rows_N.max() < 8
    assert step.tokens_N.min() >= 0 and step.tokens_N.max() < 7


@interpreted
def test_what_is_left_of_a_permutation() -> None:
    batch = make_batch([Example((7, 5, 7, 9), (), 0), Example((6, 6), (), 1)])
    choices = Permutation().start(batch).select(torch.tensor([0, 0, 0, 1, 1, 1]))
    rows_N, tokens_N = torch.tensor([2, 0, 1, 5, 3, 3]), torch.tensor([7, 9, 5, 6, 6, 6])
    expected = choices.select(rows_N).advance(tokens_N)
    found_NC = permutation.tokens_left(choices.left_NC, choices.candidates_BC, rows_N, tokens_N)
    assert torch.equal(found_NC, expected.left_NC)


@pytest.mark.parametrize("average", [0.0, 0.9])
@interpreted
def test_an_update(average: float, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in ((50, 30), (1030,))]
    gradients = [torch.randn(p.shape, generator=generator) for p in start]
    bad = [gradients[0], gradients[1].clone().fill_(torch.inf)]

    def updated() -> Adagrad:
        weights = [torch.nn.Parameter(p.clone()) for p in start]
        optimizer = Adagrad({"all": weights}, rates={"all": 0.1}, max_norm=5.0, initial=0.1, average=average)
        for given in (gradients, bad, gradients):
            optimizer.step(given)
        return optimizer

    plain = updated()
    monkeypatch.setattr(devices, "kernels_usable", lambda *_: True)
    used = []
    monkeypatch.setattr(
        "argbeam.training.optimizer.adagrad", lambda *a, **k: (used.append(1), adagrad_kernel.adagrad(*a, **k))
    )
    by_kernel = updated()
    assert len(used) == 6
    for name in ("parameters", "sums", "averages"):
        assert_close(getattr(by_kernel, name), getattr(plain, name))


def test_a_parameter_in_another_layout_is_updated_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of Adagrad is the rate, against the gradient's sign; a kernel would pair the wrong entries."""
    monkeypatch.setattr(devices, "kernels_usable", lambda *_: True)
    gradient = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    parameter = torch.nn.Parameter(torch.zeros(4, 3).T)
    Adagrad({"all": [parameter]}, rates={"all": 0.1}, max_norm=5.0).step([gradient])
    assert_close(parameter.detach(), -0.1 * gradient.sign())


# Rows and words of a sentence, and the shared memory that the attention kernels take when they are compiled for them.
COMPILED = {(16, 128): 77824, (16, 256): 151552, (32, 256): 167936, (64, 128): 147456, (64, 256): 245760}


@pytest.mark.parametrize("device_has", [101376, 166912, 232448], ids=["RTX 3090", "A100", "H100"])
def test_attention_kernels_fit_the_memory_of_a_device(device_has: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "shared_memory", lambda _: device_has)
    taken = {size for size in COMPILED if attention.fits(*size, torch.device("cuda"))}
    assert all(COMPILED[size] <= device_has for size in taken)
    assert attention.fits(7, 60, torch.device("cuda"))
    # A sentence that does not fit goes the plain way, and comes out the same.
    monkeypatch.setattr(attention, "attention", lambda *_: pytest.fail("it does not fit"))
    query_NH, keys_BSH = torch.randn(64, 8), torch.randn(1, 256, 8)
    attended = Attended(keys_BSH, keys_BSH, torch.zeros(1, 256, dtype=torch.bool))
    context_NH, _ = KernelSteps.attention(query_NH, attended)
    assert_close(context_NH, (query_NH @ keys_BSH[0].T).softmax(1) @ keys_BSH[0])


@pytest.mark.parametrize(
    ("capability", "device_has", "unused"),
    [(86, 101376, {"_joint_cell"}), (90, 232448, set())],
    ids=["RTX 3090", "H100"],
)
def test_every_kernel_compiles_for_a_device(capability: int, device_has: int, unused: set[str]) -> None:
    """The interpreter takes what Triton's compiler and a device's memory do not."""
    program = Path(__file__).parents[2] / "support" / "gpu_compiler.py"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(program), str(capability), str(device_has)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    taken = json.loads(ran.stdout)
    assert {name for name, memory in taken.items() if memory is None} == unused
    assert max(memory for memory in taken.values() if memory is not None) <= device_has


@pytest.mark.parametrize("input_feeding", [False, True])
def test_scores_without_gradient_read_words_from_columns(input_feeding: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As dev perplexity does: steps are then kernels, and their words lie apart in memory."""
    batch = make_batch([Example((5, 6, 7), (7, 5, 6), 0), Example((8, 4), (4, 8), 1)]).to(DEVICE)
    model = small_lstm(layers=1, hidden=6, embedding=5, dropout=0.0, input_feeding=input_feeding).float().to(DEVICE)
    with torch.no_grad():
        monkeypatch.setattr(devices, "kernels_usable", lambda *_: False)
        plain_BTV = score(model, model.encode(batch, None), batch.target_BT)
        monkeypatch.setattr(devices, "kernels_usable", lambda *_: True)
        assert_close(score(model, model.encode(batch, None), batch.target_BT), plain_BTV)
        state = model.step(model.encode(batch, None), torch.full((2,), BOS, device=DEVICE))
        after_first = model.step(state, batch.target_BT[:, 0])
        assert_close(model.scores(model.output(after_first)[:, None])[:, 0], plain_BTV[:, 1])


VOCABULARY = 40
# Random weights break any margin at every word; below zero, they break it at some.
MARGIN = -0.2
BSO = Bso(Unconstrained(VOCABULARY, end_symbol=False), 3, open_length=False, start_beam=3, margin=MARGIN)
LOSSES: dict[str, StepLoss] = {
    "cross_entropy": CrossEntropy(),
    "bso": BSO.at(0),
    "conbso": Bso(Permutation(), 4, open_length=False, start_beam=4).at(0),
    "top": Bso(Unconstrained(VOCABULARY, end_symbol=True), 3, start_beam=3, margin=MARGIN, cost=one_minus_bleu).at(0),
    "logprob_sum": replace(BSO, rule=LogprobSum(), margin_per_token=0.01).at(0),
}


@pytest.mark.parametrize(
    ("name", "layers"), [("cross_entropy", 1), ("bso", 1), ("conbso", 2), ("top", 1), ("logprob_sum", 1)]
)
@interpreted
def test_a_training_step_of_kernels_is_the_plain_one(name: str, layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and every gradient, with dropout and restarts; the kernels must really be what runs."""
    generator = torch.Generator().manual_seed(layers)
    examples = []
    for number in range(2):
        words = torch.randint(4, VOCABULARY, (3 - number,), generator=generator).tolist()
        end = (EOS,) if name == "top" else ()  # of open length
        examples.append(Example(tuple(sorted(words)), (*words, *end), number))
    batch = make_batch(examples)
    model = small_lstm(VOCABULARY, layers=layers, hidden=20, embedding=12, bound=0.4, seed=layers).float()
    plain, plain_gradients, violations = _gradients(LOSSES[name], model, batch)
    assert name == "cross_entropy" or 0 < violations < sum(len(e.target) for e in examples)

    used: set[str] = set()
    monkeypatch.setattr(devices, "kernels_usable", lambda *_: used.add("asked") or True)
    parts = {"cell", "cell_backward", "attention", "attention_backward", "combine", "combine_backward"}
    for kernel in parts:
        function = getattr(KernelSteps, kernel)
        counted = staticmethod(lambda *a, _f=function, _n=kernel, **k: (used.add(_n), _f(*a, **k))[1])
        monkeypatch.setattr(KernelSteps, kernel, counted)
    monkeypatch.setattr(
        search_step, "search_step", lambda *a, _f=search_step.search_step, **k: (used.add("search"), _f(*a, **k))[1]
    )
    with as_on_a_device():
        found, gradients, _ = _gradients(LOSSES[name], model, batch)
    assert parts <= used
    assert ("search" in used) == (name != "cross_entropy")
    assert_close(found, plain)
    assert_close(gradients, plain_gradients)


def test_a_training_step_of_a_transformer_with_kernels_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """BSO with dropout and restarts: the search steps by kernels, the replay does not."""
    examples = [Example((4, 5, 6), (6, 4, 5), 3), Example((7, 4), (4, 7), 8)]
    batch = make_batch(examples).to(DEVICE)
    sizes = {"source_vocabulary": VOCABULARY, "target_vocabulary": VOCABULARY, "hidden": 8, "heads": 2}
    model = Transformer(layers=1, feed_forward=12, dropout=0.3, **sizes).to(DEVICE)
    model.initialise(bound=0.5, generator=torch.Generator().manual_seed(1))
    loss = Bso(Permutation(), 2, start_beam=2, margin=0.1, open_length=False).at(0)
    with monkeypatch.context() as patched, as_on_a_device():
        patched.setattr(devices, "kernels_usable", lambda *_: False)
        plain, plain_gradients, violations = _gradients(loss, model, batch)
    assert 0 < violations < 5
    with monkeypatch.context() as patched, as_on_a_device():
        patched.setattr(devices, "kernels_usable", lambda *_: True)
        found, gradients, _ = _gradients(loss, model, batch)
    assert_close(found, plain)
    assert_close(gradients, plain_gradients)


@pytest.mark.parametrize(("steps", "batch", "kept", "read"), [(1, 1, 2, 1), (7, 3, 2, 1), (12, 5, 6, 1), (9, 4, 5, 5)])
def test_segments_are_read_back_as_by_plain_steps(
    steps: int, batch: int, kept: int, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gold and ends lie in memory as losses have them: sentence by sentence, read across."""
    draw = torch.Generator().manual_seed(steps)
    tokens_TBJ, parents_TBJ = (torch.randint(high, (steps, batch, kept), generator=draw) for high in (50, kept))
    place_TBN = torch.randint(kept, (read, batch, steps), generator=draw).permute(2, 1, 0)
    end_BT = torch.rand(batch, steps, generator=draw) < 0.3
    gold_BT = torch.randint(50, (batch, steps + 2), generator=draw)[:, :steps]
    given = [x.to(DEVICE) for x in (gold_BT, end_BT.T, place_TBN)]
    beams = Beams(tokens_TBJ.to(DEVICE), parents_TBJ.to(DEVICE), torch.zeros(steps, batch, kept, device=DEVICE))
    found = []
    for usable in (False, True):
        monkeypatch.setattr(devices, "kernels_usable", lambda *_, usable=usable: usable)
        found.append(segment_tokens(beams, *given))
    assert found[0].shape == (batch, read, steps) and torch.equal(*found)


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize(("rule", "per_token"), [(LastScore(), 0.0), (ScoreSum(), 0.0), (LogprobSum(), 0.3)])
@pytest.mark.parametrize(("batch", "steps"), [(1, 1), (3, 2), (5, 7), (2, 40)])
def test_the_loss_from_replayed_scores(batch: int, steps: int, rule: ScoreRule, per_token: float, broken: bool) -> None:
    """Loss, slopes and every sum for the records, in the order of the records; sentences may be empty."""
    generator = torch.Generator().manual_seed(batch)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    length_B = torch.randint(steps + 1, (batch,), generator=generator)
    length_B[0] = steps
    violation_TB = (draw(steps, batch) < -0.2) & (torch.arange(steps)[:, None] < length_B)
    violation_TB[-1, 0] = True
    score_TB2 = draw(steps, batch, 2)
    behind_BT = since_restart((score_TB2[..., 1] - score_TB2[..., 0]).T, violation_TB.T)
    rival_score_BT = behind_BT if rule.adds_up and not per_token else draw(batch, steps)  # as in the search, or not
    if broken:
        score_TB2[steps // 2, 0, 0] = torch.nan
    found = Violations(
        violation_BT=violation_TB.T,
        rival_BT=torch.randint(4, 9, (batch, steps), generator=generator),
        rival_is_gold_BT=((draw(steps, batch) < -0.8) & violation_TB).T,
        rival_ended_BT=((draw(steps, batch) < -0.8) & violation_TB).T,
        gold_score_BT=torch.zeros(batch, steps),
        rival_score_BT=rival_score_BT,
        gold_on_beam_B=draw(batch) < 0.5,
        stop_B=length_B - 1,
    )
    found = Violations(**{name: value.to(DEVICE) for name, value in vars(found).items()})
    bso = Bso(Permutation(), 3, rule=rule, margin=1.5, margin_per_token=per_token, cost_scale=0.7, open_length=False)
    scores = [score_TB2.to(DEVICE).requires_grad_() for _ in range(2)]
    length_B = length_B.to(DEVICE)
    plain = hinge_loss(bso, found, Replayed(scores[0]), torch.zeros_like(found.rival_BT), length_B)
    quick = bso_loss.hinge_by_kernel(bso, found, Replayed(scores[1]), length_B)
    assert_close(quick.total, plain.total, equal_nan=True)
    assert list(quick.sums) == list(plain.sums) and plain.sums["violations"] > 0
    assert not quick.total._is_view()  # users may change it in place
    assert bool(quick.total.isnan()) == broken  # such an update is left out, and so are its gradient and its counts
    if not broken:
        assert_close(dict(quick.sums), dict(plain.sums))
        outs = zip((plain, quick), scores, strict=True)
        expected, slopes = (torch.autograd.grad(3 * out.total, scores)[0] for out, scores in outs)
        assert_close(slopes, expected)


@pytest.mark.parametrize(("batch", "steps"), [(1, 1), (3, 5), (70, 4)])
def test_what_the_lanes_of_a_replay_read(batch: int, steps: int) -> None:
    """Tensors of losses are of any layout: sentence by sentence, or step by step."""
    generator = torch.Generator().manual_seed(steps)
    gold_BT = torch.randint(4, 50, (batch, steps + 1), generator=generator)[:, :steps]
    rival_TB = torch.randint(4, 50, (steps, batch), generator=generator)
    restart_TB = torch.rand(steps, batch, generator=generator) < 0.4
    given = [x.to(DEVICE) for x in (gold_BT, rival_TB)]
    given = [given[0], given[1].T, restart_TB.to(DEVICE).T]
    for quick, plain in zip(replay_kernel.lanes(*given, BOS), lanes(*given, BOS), strict=True):
        assert torch.equal(quick, plain)


@pytest.mark.parametrize("dense", [0, 1 << 23], ids=["searched", "dense"])
def test_a_trie_steps_by_kernels_as_by_plain_torch(dense: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows move and take a token, of the trie or not; after every step the same nodes, lists and ways to an end."""
    monkeypatch.setattr(tries, "_DENSE", dense)
    entries = [(4, 5, 6), (4, 5), (4, 7, 7, 5), (6,), (9, 4), (9, 5), (9, 6), (9, 4, 4)]
    entries += [(8, last) for last in range(4, 700)]  # more than one program lists
    batch = make_batch([Example((4,), (4, EOS), i) for i in range(3)]).to(DEVICE)
    start = Trie.of(entries, vocabulary=700).start(batch).select(torch.arange(150, device=DEVICE) % 3)
    generator = torch.Generator().manual_seed(1)
    steps = [
        (torch.randint(150, (150,), generator=generator), torch.randint(4, 10, (150, 2), generator=generator)[:, 0])
        for _ in range(4)
    ]
    seen = []
    for usable in (False, True):
        monkeypatch.setattr(devices, "kernels_usable", lambda *_, usable=usable: usable)
        choices, states = start, []
        for rows_N, tokens_N in steps:
            choices = choices.advance_from(rows_N.to(DEVICE), tokens_N.to(DEVICE))
            listed = choices._successors()
            assert listed.to_end is not None
            real_NW = listed.real_NW
            states.append([choices.node_N, real_NW, listed.tokens_NW[real_NW], listed.to_end()[real_NW]])
        seen.append(states)
    assert seen[0][0][1].any() and not seen[0][0][1].all()
    for plain, quick in zip(*seen, strict=True):
        assert all(map(torch.equal, plain, quick))


def test_rows_that_lie_side_by_side_are_not_copied() -> None:
    memory, like = StepMemory(3), torch.zeros(1)
    rows = [memory.row(t, "tokens", 2, 5, like=like, dtype=torch.int64) for t in range(3)]
    for t, row in enumerate(rows):
        row.fill_(t)
    together = stacked(rows)
    assert torch.equal(together, torch.stack(rows)) and together.data_ptr() == rows[0].data_ptr()
    assert stacked(rows[1:]).data_ptr() == rows[1].data_ptr() and stacked(rows[:1]).shape == (1, 2, 5)
    whole = torch.arange(24).view(4, 2, 3)
    for others in ([rows[0], rows[2].clone()], [rows[2], rows[1]], [rows[0], rows[0]], [whole[0].T, whole[1].T]):
        assert torch.equal(stacked(others), torch.stack(others))
        assert stacked(others).untyped_storage().data_ptr() != others[0].untyped_storage().data_ptr()


def _gradients(
    loss: StepLoss, model: LstmSeq2Seq | Transformer, batch: Batch
) -> tuple[Tensor, tuple[Tensor, ...], float]:
    out = loss(model, batch, Noise(1, torch.tensor(5, device=batch.sentence_B.device), batch.sentence_B))
    gradients = torch.autograd.grad(out.total, list(model.parameters()), materialize_grads=True)
    return out.total, gradients, float(out.sums.get("violations", torch.zeros(())))
