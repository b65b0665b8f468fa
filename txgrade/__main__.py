"""`python -m txgrade` is the command `txgrade`."""

from txgrade.cli import main

main()
