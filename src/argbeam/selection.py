"""The best successors of a beam: what each word is worth, and which K of all are the best."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.beams import Beam, Found
from argbeam.models.contract import Model
from argbeam.rules import NEVER, ScoreRule

# Rows of scores are searched by blocks of this many columns once they have this many blocks.
_BLOCK, _BLOCKS = 64, 16


def word_worths(
    rule: ScoreRule,
    model: Model,
    output_BRH: Tensor,
    total_BK: Tensor,
    candidates_BC: Tensor | None,
    gold_B: Tensor | None,
) -> Float[Tensor, "B R C"]:
    """What each successor's newest word is worth; with gold, its lane comes last.

    After a restart most rows of a beam are empty, and of gold's lane only gold's word is asked for: on a CPU, where it
    costs time and no shape is fixed, nothing else is scored.
    """
    if candidates_BC is not None or not host_may_look(output_BRH):
        return rule.words(model, output_BRH, candidates_BC)
    alive_BR = torch.zeros_like(output_BRH[..., 0], dtype=torch.bool)
    alive_BR[:, : total_BK.shape[1]] = total_BK > NEVER
    if bool(alive_BR.all()):
        return rule.words(model, output_BRH, None)
    words_XC = rule.words(model, output_BRH[alive_BR][:, None], None)[:, 0]
    words_BRC = words_XC.new_full((*alive_BR.shape, words_XC.shape[1]), NEVER)
    words_BRC[alive_BR] = words_XC
    if gold_B is not None:
        gold_word_B1 = rule.words(model, output_BRH[:, -1:], gold_B[:, None])[:, 0]
        words_BRC[:, -1].scatter_(1, gold_B[:, None], gold_word_B1)
    return words_BRC


def host_may_look(x: Tensor) -> bool:
    """Whether shapes may depend on values: on a device the host would have to wait, and nothing could be captured."""
    return not x.is_cuda


def best_successors(
    rule: ScoreRule,
    beam: Beam,
    words_BKC: Float[Tensor, "B K C"],
    allowed_BKC: Bool[Tensor, "B K C"] | Bool[Tensor, "1 1 C"],
    candidates_BC: Int[Tensor, "B C"] | None,
    *,
    kept: int,
) -> Found:
    """The best valid successors: first each row's best words, which every rule ranks alike, then the best of all."""
    row_words_BKP, row_columns_BKP = _best_words(torch.where(allowed_BKC, words_BKC, NEVER), kept)
    ranks_BX = rule.rank(beam.total_BK, row_words_BKP).flatten(1)
    columns_BX = row_columns_BKP.flatten(1)
    missing = kept - ranks_BX.shape[1]
    if missing > 0:  # fewer candidates than places: the rest are empty
        ranks_BX = torch.nn.functional.pad(ranks_BX, (0, missing), value=NEVER)
        columns_BX = torch.nn.functional.pad(columns_BX, (0, missing))
    ranks_BJ, places_BJ = ranks_BX.topk(kept, dim=1)
    columns_BJ = columns_BX.gather(1, places_BJ)
    tokens_BJ = columns_BJ if candidates_BC is None else candidates_BC.gather(1, columns_BJ)
    # Worked example, K = 3 rows with P = 2 words each: places [0, 1, 5] have parents [0, 0, 2].
    parents_BJ = places_BJ // row_words_BKP.shape[2]
    return Found(parents_BJ.clamp(max=words_BKC.shape[1] - 1) if missing > 0 else parents_BJ, tokens_BJ, ranks_BJ)


def _best_words(words_BKC: Float[Tensor, "B K C"], kept: int) -> tuple[Float[Tensor, "B K P"], Int[Tensor, "B K P"]]:
    """The best words of each row, best first, and their columns.

    A long row is cut into blocks. Its best words lie in the blocks with the highest maxima, and finding those reads the
    row once, where a selection over the whole row reads it several times.
    """
    columns = words_BKC.shape[2]
    whole = columns - columns % _BLOCK
    if whole < max(_BLOCKS, kept) * _BLOCK:
        best = words_BKC.topk(min(kept, columns), dim=2)
        return best.values, best.indices
    blocks_BKNW = words_BKC[:, :, :whole].view(*words_BKC.shape[:2], -1, _BLOCK)
    chosen_BKP = blocks_BKNW.amax(3).topk(kept, dim=2, sorted=False).indices
    near_BKX = blocks_BKNW.gather(2, chosen_BKP[..., None].expand(-1, -1, -1, _BLOCK)).flatten(2)
    near_BKX = torch.cat([near_BKX, words_BKC[:, :, whole:]], 2)
    best_BKP, places_BKP = near_BKX.topk(kept, dim=2)
    # Places beyond the chosen blocks are in the remainder of the row.
    block_BKP = chosen_BKP.gather(2, (places_BKP // _BLOCK).clamp(max=kept - 1))
    in_blocks_BKP = block_BKP * _BLOCK + places_BKP % _BLOCK
    in_rest_BKP = places_BKP + (whole - kept * _BLOCK)
    return best_BKP, torch.where(places_BKP < kept * _BLOCK, in_blocks_BKP, in_rest_BKP)


def of_beam(allowed_NC: Bool[Tensor, "N C"], batch: int, beam_size: int) -> Bool[Tensor, "B K C"]:
    """The mask of the beam's rows, the gold lane left out. A mask of one row holds for all."""
    if allowed_NC.shape[0] == 1:
        return allowed_NC[None]
    return allowed_NC.view(batch, -1, allowed_NC.shape[1])[:, :beam_size]


def worth_of(word_B: Tensor, words_BC: Tensor, candidates_BC: Tensor | None) -> Tensor:
    """The score of one word per sentence. Columns that list the same word have the same score."""
    if candidates_BC is None:
        return words_BC.gather(1, word_B[:, None])[:, 0]
    return words_BC.masked_fill(candidates_BC != word_B[:, None], NEVER).amax(1)
