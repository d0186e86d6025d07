"""Several tasks with one network: shared hyper-parameters, and source weights learned from all tasks."""
