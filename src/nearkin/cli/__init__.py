"""The command line. It imports torch only when a command needs it."""
