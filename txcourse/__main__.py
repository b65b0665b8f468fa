"""`python -m txcourse` is the command `txcourse`."""

from txcourse.cli import main

main()
