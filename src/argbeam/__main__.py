"""`python -m argbeam` is the command `argbeam`."""

from argbeam.cli import main

main()
