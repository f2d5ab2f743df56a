"""The best successors of a beam: what each word is worth, and which K of all are the best."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from argbeam.models.contract import Scorer
from argbeam.search.live_rows import Live
from argbeam.search.result import Beam, Found
from argbeam.search.score_rules import NEVER, ScoreRule

# Rows of scores are searched by blocks of this many columns once they have this many blocks.
_BLOCK, _BLOCKS = 64, 16


@dataclass(frozen=True)
class AllWords:
    """What every word, or every candidate, is worth in every row."""

    rule: ScoreRule
    words_BRC: Float[Tensor, "B R C"]
    candidates_BC: Int[Tensor, "B C"] | None

    def best_successors(self, beam: Beam, allowed_NC: Bool[Tensor, "N C"], *, kept: int) -> Found:
        """The best valid successors of a beam, whose rows are the first ones."""
        batch, beam_size = beam.total_BK.shape
        allowed_BKC = _of_beam(allowed_NC, batch, beam_size)
        # First each row's best words, which every rule ranks alike, then the best of all.
        best = _best_words(torch.where(allowed_BKC, self.words_BRC[:, :beam_size], NEVER), kept)
        return _best_of_all(self.rule, beam, *best, self.candidates_BC, kept)

    def in_last_row(self, word_B: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        """What one word per sentence is worth in its last row. Columns that list the same word have the same score."""
        words_BC = self.words_BRC[:, -1]
        if self.candidates_BC is None:
            return words_BC.gather(1, word_B[:, None])[:, 0]
        return words_BC.masked_fill(self.candidates_BC != word_B[:, None], NEVER).amax(1)


@dataclass(frozen=True)
class LiveWords:
    """What every word is worth in the live rows of the beams; the same methods."""

    rule: ScoreRule
    model: Scorer
    output_BRH: Float[Tensor, "B R H"]
    live: Live
    words_XV: Float[Tensor, "X V"]

    def best_successors(self, beam: Beam, allowed_NV: Bool[Tensor, "N V"], *, kept: int) -> Found:
        if allowed_NV.shape[0] == 1:  # a few columns are cheaper than a mask over all
            valid_XV = self.words_XV.clone(memory_format=torch.contiguous_format)
            valid_XV.index_fill_(1, (~allowed_NV[0]).nonzero()[:, 0], NEVER)
        else:
            valid_XV = torch.where(allowed_NV[self.live.beam_place_X], self.words_XV, NEVER)
        best_1XP = _best_words(valid_XV[None], kept)
        # A row that is not live gets another one's words, which an empty row ranks as nothing.
        row_BK = self.live.row_BR[:, : beam.total_BK.shape[1]]
        row_words_BKP, row_columns_BKP = (part_1XP[0, row_BK] for part_1XP in best_1XP)
        return _best_of_all(self.rule, beam, row_words_BKP, row_columns_BKP, None, kept)

    def in_last_row(self, word_B: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        if self.live.all_on_beams:  # gold's lane mostly is a row of the beam as well
            return self.words_XV[self.live.row_BR[:, -1], word_B]
        return self.rule.words(self.model, self.output_BRH[:, -1:], word_B[:, None])[:, 0, 0]


def score_words(
    rule: ScoreRule,
    model: Scorer,
    output_BRH: Float[Tensor, "B R H"],
    candidates_BC: Int[Tensor, "B C"] | None,
    live: Live | None,
) -> AllWords | LiveWords:
    """What the words are worth: in live rows alone where they are known, and candidates are not few anyway."""
    if live is None or candidates_BC is not None:
        return AllWords(rule, rule.words(model, output_BRH, candidates_BC), candidates_BC)
    output_XH = output_BRH.flatten(0, 1).index_select(0, live.beam_place_X)
    return LiveWords(rule, model, output_BRH, live, rule.words(model, output_XH[None], None)[0])


def _best_of_all(
    rule: ScoreRule,
    beam: Beam,
    row_words_BKP: Tensor,
    row_columns_BKP: Tensor,
    candidates_BC: Tensor | None,
    kept: int,
) -> Found:
    """The best successors among those with the best words of each row."""
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
    return Found(parents_BJ.clamp(max=row_words_BKP.shape[1] - 1) if missing > 0 else parents_BJ, tokens_BJ, ranks_BJ)


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


def _of_beam(allowed_NC: Bool[Tensor, "N C"], batch: int, beam_size: int) -> Bool[Tensor, "B K C"]:
    """The mask of the beam's rows, the gold lane left out. A mask of one row holds for all."""
    if allowed_NC.shape[0] == 1:
        return allowed_NC[None]
    return allowed_NC.view(batch, -1, allowed_NC.shape[1])[:, :beam_size]
