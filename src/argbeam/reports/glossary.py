"""The words of a report that a stranger may not know."""

from argbeam.reports.page import Table
from argbeam.settings.data import ranked

# docs/notation.md has all words of the project.
_WORDS = {
    "beam": "the number of prefixes that the search keeps at each step",
    "seq2seq, cross-entropy": "trained to give each gold token a high probability after the gold tokens before it",
    "BSO": "beam-search optimization: trained with the beam search, so that gold stays on the beam",
    "ConBSO": "BSO whose training search obeys the task's constraint, as decoding does",
    "gold": "the sequence that training wants as the output",
    "rival": "the prefix that gold has to beat: the last one on the beam, at the end the best other sequence",
    "violation": "a step of the training search at which gold does not lead the rival by the margin; "
    "the search then restarts from gold. 0.3 per token: about every third token",
    "unfinished": "outputs that were cut off at the length limit",
    "dead": "outputs whose search met a prefix without a valid successor",
    "length^p, chosen on dev": "sums of log-probabilities are divided by the length to the power p",
    "UAS, LAS": "words with the right head in percent; words with the right head and label",
}


# Titles of the parts of a score.
_PARTS = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "uas": "UAS",
    "las": "LAS",
    "exact": "Exact matches in percent",
    "unseen": "Exact matches in percent, of unseen sources",
    "regex": "Equal regular expressions in percent",
    "token_error_rate": "Token error rate",
    "length": "Output length over reference length",
}
_RANKED = {"top": "References among the {} best in percent", "ndcg": "NDCG@{}", "hit": "Hit@{}"}


def part_title(part: str) -> str:
    """The title of a part of a score: "BLEU", "NDCG@10"."""
    found = ranked(part)
    return _RANKED[found[0]].format(found[1]) if found else _PARTS.get(part, part)


def words_table() -> Table:
    """What the words of the page mean."""
    return Table("Words", ["word", "meaning"], [list(row) for row in _WORDS.items()], [])
