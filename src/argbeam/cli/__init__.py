"""The command `argbeam`: arguments in, exit codes out.

Read `app` first. Every verb imports what it needs when it runs, so that `argbeam --help` needs no torch. Work that a
library user might want belongs in the rooms below.
"""
