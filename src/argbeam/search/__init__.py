"""The beam search: one for greedy decoding, constraints, training with gold, and every score and stop rule.

Read `search` and `gold` first: the loop with its two steps, `decode_step` and `gold_step`. `score_rules` and
`stop_rules` score prefixes and end a search; `successors` are the tokens that may follow. `live_rows`, `top_k` and
`fused_step` make it fast. No loss and no gradient belongs here: losses replay the tokens that a search finds.
"""
