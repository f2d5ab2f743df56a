"""Constraints that users bring: a list of entries (`trie`)."""
