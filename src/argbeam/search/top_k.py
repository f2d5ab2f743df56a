"""The best successors of a beam: the scores of their newest tokens, and the K best of all."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from argbeam.models.contract import Scorer
from argbeam.runtime import device as devices
from argbeam.search.live_rows import Live
from argbeam.search.result import Beam, TopSuccessors
from argbeam.search.score_rules import NEVER, ScoreRule, over_valid
from argbeam.search.successors import (
    NO_END,
    Choices,
    KnowsEnd,
    Listed,
    ListsSuccessors,
    check_width,
    ending_within,
)

if devices.TRITON_INSTALLED:
    from argbeam.search import top_k_kernel

# Rows of scores are searched by blocks of this many columns once they have this many blocks.
BLOCK, BLOCKS = 64, 16
# Lists of successors up to this part of the vocabulary are scored by themselves on a CPU. The output layer's rows are
# looked up for each of them, while the product over the whole vocabulary reads every row once.
_FEW = 64


@dataclass(frozen=True)
class AllScores:
    """Scores of every token, or of every candidate, in every row; if `raw`, still to be normalised by the rule."""

    rule: ScoreRule
    given_BRC: Float[Tensor, "B R C"]
    candidates_BRC: Int[Tensor, "B #R C"] | None  # of a sentence, or of each row
    raw: bool = False

    @cached_property
    def scores_BRC(self) -> Float[Tensor, "B R C"]:
        return self.given_BRC.log_softmax(2) if self.raw else self.given_BRC

    @property
    def columns(self) -> int:
        """The number of tokens with a score in each row."""
        return self.given_BRC.shape[2]

    def top_successors(self, beam: Beam, allowed_NC: Bool[Tensor, "N C"], *, kept: int) -> TopSuccessors:
        """The best valid successors of a beam, whose rows are the first of each sentence."""
        batch, beam_size = beam.score_BK.shape
        allowed_BKC = allowed_NC[None]  # one row holds for all
        if allowed_NC.shape[0] > 1:
            allowed_BKC = allowed_NC.view(batch, -1, allowed_NC.shape[1])[:, :beam_size]
        # First the best tokens of each row, which are the same under every rule, then the best of all.
        if _by_blocks(self.columns, kept) and devices.kernels_usable(self.given_BRC):
            best = best_columns_by_kernel(self.given_BRC[:, :beam_size], allowed_BKC, kept, normalise=self.raw)
        else:
            best = best_columns(torch.where(allowed_BKC, self.scores_BRC[:, :beam_size], NEVER), kept)
        return _best_of_all(self.rule, beam, *best, self.candidates_BRC, kept)

    def over(self, allowed_NC: Bool[Tensor, "N C"]) -> "AllScores":
        """Log-probabilities over the valid successors alone."""
        rows = self.given_BRC.shape[1] if allowed_NC.shape[0] > 1 else 1
        valid_BRC = torch.where(allowed_NC.view(-1, rows, allowed_NC.shape[1]), self.scores_BRC, NEVER)
        return AllScores(self.rule, over_valid(valid_BRC), self.candidates_BRC)

    def in_gold_lane(self, token_B: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Score of one token per sentence in its last row. Columns of the same token have the same score."""
        scores_BC = self.given_BRC[:, -1].log_softmax(1) if self.raw else self.given_BRC[:, -1]
        if self.candidates_BRC is None:
            return scores_BC.gather(1, token_B[:, None])[:, 0]
        return scores_BC.masked_fill(self.candidates_BRC[:, -1] != token_B[:, None], NEVER).amax(1)


@dataclass(frozen=True)
class LiveScores:
    """Scores of every token in the live rows of the beams; the same methods."""

    rule: ScoreRule
    scorer: Scorer
    output_BRH: Float[Tensor, "B R H"]
    live: Live
    scores_XV: Float[Tensor, "X V"]

    @property
    def columns(self) -> int:
        return self.scores_XV.shape[1]

    def top_successors(self, beam: Beam, allowed_NV: Bool[Tensor, "N V"], *, kept: int) -> TopSuccessors:
        best_1XP = best_columns(self._valid(allowed_NV)[None], kept)
        # A row that is not live gets another row's scores; its own score makes nothing of them.
        row_BK = self.live.row_BR[:, : beam.score_BK.shape[1]]
        row_scores_BKP, row_columns_BKP = (part_1XP[0, row_BK] for part_1XP in best_1XP)
        return _best_of_all(self.rule, beam, row_scores_BKP, row_columns_BKP, None, kept)

    def over(self, allowed_NV: Bool[Tensor, "N V"]) -> "LiveScores":
        return replace(self, scores_XV=over_valid(self._valid(allowed_NV)))

    def _valid(self, allowed_NV: Bool[Tensor, "N V"]) -> Float[Tensor, "X V"]:
        """The scores, minus infinity where a token is not valid."""
        if allowed_NV.shape[0] > 1:
            return torch.where(allowed_NV[self.live.beam_place_X], self.scores_XV, NEVER)
        valid_XV = self.scores_XV.clone(memory_format=torch.contiguous_format)  # a few columns are cheaper than a mask
        return valid_XV.index_fill_(1, (~allowed_NV[0]).nonzero()[:, 0], NEVER)

    def in_gold_lane(self, token_B: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        if self.live.all_on_beams:  # gold's lane mostly is a row of the beam as well
            return self.scores_XV[self.live.row_BR[:, -1], token_B]
        return self.rule.token_scores(self.scorer, self.output_BRH[:, -1:], token_B[:, None])[:, 0, 0]


@dataclass(frozen=True)
class ListedScores:
    """Scores of the listed successors of the live rows; the same methods."""

    rule: ScoreRule
    live: Live
    scores_XW: Float[Tensor, "X W"]
    tokens_XW: Int[Tensor, "X W"]

    @property
    def columns(self) -> int:
        return self.scores_XW.shape[1]

    def top_successors(self, beam: Beam, real_XW: Bool[Tensor, "X W"], *, kept: int) -> TopSuccessors:
        best_1XP = best_columns(torch.where(real_XW, self.scores_XW, NEVER)[None], kept)
        row_BK = self.live.row_BR[:, : beam.score_BK.shape[1]]
        tokens_XP = self.tokens_XW.gather(1, best_1XP[1][0])
        return _best_of_all(self.rule, beam, best_1XP[0][0, row_BK], tokens_XP[row_BK], None, kept)

    def over(self, real_XW: Bool[Tensor, "X W"]) -> "ListedScores":
        return replace(self, scores_XW=over_valid(torch.where(real_XW, self.scores_XW, NEVER)))

    def in_gold_lane(self, token_B: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        row_B = self.live.row_BR[:, -1]
        return self.scores_XW[row_B].masked_fill(self.tokens_XW[row_B] != token_B[:, None], NEVER).amax(1)


TokenScores = AllScores | LiveScores | ListedScores


def score_successors(
    rule: ScoreRule,
    scorer: Scorer,
    output_BRH: Float[Tensor, "B R H"],
    choices: Choices,
    live: Live | None,
    left_N: Int[Tensor, " N"] | None = None,
) -> tuple[TokenScores, Bool[Tensor, "X C"]]:
    """Scores of the next tokens, and a mask of those to take; both of listed successors where choices list them.

    The mask holds the valid tokens; with `left_N`, those of them from which an output can end within the steps left, as
    far as the choices know. Scores are normalised over the valid tokens, whether their outputs can end or not.
    """
    scores: TokenScores
    found = score_listed(rule, scorer, output_BRH, choices, live) if isinstance(choices, ListsSuccessors) else None
    if found is not None:
        scores, listed = found
        allowed_NC, to_end_NC = listed.real_NW, None
        if listed.to_end is not None and left_N is not None:
            to_end_NC = listed.to_end().masked_fill(~allowed_NC, NO_END)
            left_N = left_N if live is None else left_N[live.places.place_X]
    else:
        scores = score_tokens(rule, scorer, output_BRH, choices.candidates_BC, live)
        to_end_NC = choices.to_end() if left_N is not None and isinstance(choices, KnowsEnd) else None
        allowed_NC = choices.allowed() if to_end_NC is None else to_end_NC < NO_END
        check_width(scores.columns, allowed_NC.shape[1])
    if rule.valid_only:
        scores = scores.over(allowed_NC)
    if left_N is None or to_end_NC is None:
        return scores, allowed_NC
    return scores, ending_within(to_end_NC, left_N)


def score_tokens(
    rule: ScoreRule,
    scorer: Scorer,
    output_BRH: Float[Tensor, "B R H"],
    candidates_BC: Int[Tensor, "B C"] | None,
    live: Live | None,
) -> AllScores | LiveScores:
    """Scores of the next tokens: in live rows alone where these are known and the whole vocabulary is scored."""
    if live is None and candidates_BC is None and rule.over_vocabulary:
        # Raw: a kernel of the step may normalise them itself.
        return AllScores(rule, scorer.scores(output_BRH), None, raw=True)
    if live is None or (candidates_BC is not None and not rule.over_vocabulary):
        listed_B1C = None if candidates_BC is None else candidates_BC[:, None]
        return AllScores(rule, rule.token_scores(scorer, output_BRH, candidates_BC), listed_B1C)
    output_NH = output_BRH.flatten(0, 1)
    if candidates_BC is not None:  # log-probabilities of a short list need the scores of the whole vocabulary
        place_X = live.places.place_X
        sentence_X = place_X // output_BRH.shape[1]
        scores_X1C = rule.token_scores(scorer, output_NH[place_X][:, None], candidates_BC[sentence_X])
        return AllScores(rule, scores_X1C[live.row_BR, 0], candidates_BC[:, None])
    output_XH = output_NH.index_select(0, live.beam_place_X)
    return LiveScores(rule, scorer, output_BRH, live, rule.token_scores(scorer, output_XH[None], None)[0])


def score_listed(
    rule: ScoreRule, scorer: Scorer, output_BRH: Float[Tensor, "B R H"], choices: ListsSuccessors, live: Live | None
) -> tuple[AllScores | ListedScores, Listed] | None:
    """Scores of the listed successors of each row, or of each live row, and the lists; None without lists."""
    output_XH = output_BRH.flatten(0, 1)
    if live is not None:
        output_XH, choices = output_XH[live.places.place_X], choices.select(live.places.place_X)
    listed = choices.listed()
    if listed is None:
        return None
    tokens_XW = listed.tokens_NW
    # On a GPU products cost nearly nothing beside the rows that they read, each as wide as the output vector.
    part = output_XH.shape[1] if output_XH.is_cuda else _FEW
    if rule.over_vocabulary or tokens_XW.shape[1] * part > choices.vocabulary:
        scores_XV = rule.token_scores(scorer, output_XH[None], None)[0]
        check_width(scores_XV.shape[1], choices.vocabulary)
        scores_XW = scores_XV.gather(1, tokens_XW)
    else:
        scores_XW = rule.token_scores(scorer, output_XH[:, None], tokens_XW)[:, 0]
    if live is not None:
        return ListedScores(rule, live, scores_XW, tokens_XW), listed
    shape = (*output_BRH.shape[:2], tokens_XW.shape[1])
    return AllScores(rule, scores_XW.view(shape), tokens_XW.view(shape)), listed


def best_columns(scores_BKC: Float[Tensor, "B K C"], kept: int) -> tuple[Float[Tensor, "B K P"], Int[Tensor, "B K P"]]:
    """The best scores of each row, best first, and their columns.

    A long row is cut into blocks. Its best scores lie in the blocks with the highest maxima, and finding those reads
    the row once, where a selection over the whole row reads it several times.
    """
    columns = scores_BKC.shape[2]
    if not _by_blocks(columns, kept):
        best = scores_BKC.topk(min(kept, columns), dim=2)
        return best.values, best.indices
    return _best_of_blocks(scores_BKC, None, _blocks(scores_BKC).amax(3), kept)


def best_columns_by_kernel(
    scores_BKC: Float[Tensor, "B K C"], allowed_BKC: Bool[Tensor, "#B #K C"], kept: int, *, normalise: bool
) -> tuple[Float[Tensor, "B K P"], Int[Tensor, "B K P"]]:
    """`best_columns` of the allowed scores, or of their log-probabilities, of rows that are cut into blocks.

    One kernel reads every row once. Masking, normalising and finding the maxima one after the other read it five times.
    """
    maxima_BKN, normaliser_BKN = top_k_kernel.block_maxima(scores_BKC, allowed_BKC, width=BLOCK, normalise=normalise)
    best_BKP, columns_BKP = _best_of_blocks(scores_BKC, allowed_BKC.expand_as(scores_BKC), maxima_BKN, kept)
    if normalise:  # the normaliser of a row is a constant of it
        normalised_BKP = best_BKP - normaliser_BKN.logsumexp(2, keepdim=True)
        best_BKP = torch.where(best_BKP == NEVER, NEVER, normalised_BKP)
    return best_BKP, columns_BKP


def _by_blocks(columns: int, kept: int) -> bool:
    return columns // BLOCK >= max(BLOCKS, kept)


def _blocks(x_BKC: Shaped[Tensor, "B K C"]) -> Shaped[Tensor, "B K N W"]:
    """The row's whole blocks."""
    return x_BKC[:, :, : x_BKC.shape[2] // BLOCK * BLOCK].view(*x_BKC.shape[:2], -1, BLOCK)


def _best_of_blocks(
    scores_BKC: Float[Tensor, "B K C"],
    allowed_BKC: Bool[Tensor, "B K C"] | None,
    maxima_BKN: Float[Tensor, "B K _"],
    kept: int,
) -> tuple[Float[Tensor, "B K P"], Int[Tensor, "B K P"]]:
    """The best of the allowed scores in the blocks with the highest maxima, and in the remainder behind the blocks."""
    whole = scores_BKC.shape[2] // BLOCK
    chosen_BKP = maxima_BKN[:, :, :whole].topk(kept, dim=2, sorted=False).indices

    def near(x_BKC: Tensor) -> Tensor:
        in_blocks_BKPW = _blocks(x_BKC).gather(2, chosen_BKP[..., None].expand(-1, -1, -1, BLOCK))
        return torch.cat([in_blocks_BKPW.flatten(2), x_BKC[:, :, whole * BLOCK :]], 2)

    near_BKX = near(scores_BKC) if allowed_BKC is None else torch.where(near(allowed_BKC), near(scores_BKC), NEVER)
    best_BKP, places_BKP = near_BKX.topk(kept, dim=2)
    # Places beyond the chosen blocks are in the remainder of the row.
    block_BKP = chosen_BKP.gather(2, (places_BKP // BLOCK).clamp(max=kept - 1))
    in_blocks_BKP = block_BKP * BLOCK + places_BKP % BLOCK
    in_rest_BKP = places_BKP + (whole - kept) * BLOCK
    return best_BKP, torch.where(places_BKP < kept * BLOCK, in_blocks_BKP, in_rest_BKP)


def _best_of_all(
    rule: ScoreRule, beam: Beam, scores_BKP: Tensor, columns_BKP: Tensor, candidates_BRC: Tensor | None, kept: int
) -> TopSuccessors:
    """The best successors among those with the best tokens of each row."""
    scores_BX = rule.prefix_scores(beam.score_BK, scores_BKP).flatten(1)
    columns_BX = columns_BKP.flatten(1)
    missing = kept - scores_BX.shape[1]
    if missing > 0:  # fewer candidates than places: the rest are empty
        scores_BX = torch.nn.functional.pad(scores_BX, (0, missing), value=NEVER)
        columns_BX = torch.nn.functional.pad(columns_BX, (0, missing))
    scores_BJ, places_BJ = scores_BX.topk(kept, dim=1)
    columns_BJ = columns_BX.gather(1, places_BJ)
    # Worked example, K = 3 rows with P = 2 tokens each: places [0, 1, 5] have parents [0, 0, 2].
    parents_BJ = places_BJ // scores_BKP.shape[2]
    if missing > 0:
        parents_BJ = parents_BJ.clamp(max=scores_BKP.shape[1] - 1)
    if candidates_BRC is None:
        return TopSuccessors(parents_BJ, columns_BJ, scores_BJ)
    stride = candidates_BRC.shape[2] if candidates_BRC.shape[1] > 1 else 0
    return TopSuccessors(parents_BJ, candidates_BRC.flatten(1).gather(1, parents_BJ * stride + columns_BJ), scores_BJ)
