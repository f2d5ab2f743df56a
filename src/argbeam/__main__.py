"""`python -m argbeam` is the command `argbeam`."""

from argbeam.cli.app import main

main()
