"""Constraints that users bring: a list of entries (`trie`), or a grammar.

`notations` and `gbnf` read a grammar into the rules of `grammar`. Where one token tells what to do, `rule_automata` and
`automaton` make tables of it for `pushdown`, on the device; `matchers` takes any grammar, on the host.
"""
