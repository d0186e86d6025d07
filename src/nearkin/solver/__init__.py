"""Solve a task beside a zoo: data checks, related tasks, a contest under equal time, one answer."""
