"""`python -m fabench` is `fabench`."""

from fabench.cli import main

main(prog_name="fabench")
