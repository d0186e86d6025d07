"""One architecture for several tasks: transfer between their encoders by matching distributions."""
