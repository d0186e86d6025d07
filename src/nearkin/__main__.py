"""`python -m nearkin` runs the command `nearkin`."""

from nearkin.cli.app import main

main()
