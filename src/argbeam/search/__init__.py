"""The beam search: one for greedy decoding, constraints, training with gold, and every score and stop rule.

Read `search` and `gold` first. `score_rules` and `stop_rules` say how prefixes are ranked and when a search ends;
`successors` says which tokens may follow. `live_rows`, `top_k` and `fused_step` make it fast. No loss and no gradient
belongs here: the search only finds, losses replay what it found.
"""
