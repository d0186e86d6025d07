"""`python -m nearkin` is the command `nearkin`."""

from nearkin.cli.app import main

main()
