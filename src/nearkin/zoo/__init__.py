"""The zoo: solved tasks kept on disk, a catalogue in SQLite and content-addressed files beside it."""
