"""The command line: words in, one answer out. Imports no torch until a command needs it."""
