"""Execution: checkpoints, stages, jobs and who does them, journals of running commands, tracking."""

from typing import TYPE_CHECKING

from nearkin.core.lazy import exports

if TYPE_CHECKING:
    from nearkin.run.checkpoints import Checkpoints as Checkpoints
    from nearkin.run.checkpoints import FolderCheckpoints as FolderCheckpoints
    from nearkin.run.checkpoints import MemoryCheckpoints as MemoryCheckpoints
    from nearkin.run.jobs import JobError as JobError
    from nearkin.run.jobs import JobSpec as JobSpec
    from nearkin.run.journal import JournalEntry as JournalEntry
    from nearkin.run.journal import journals as journals
    from nearkin.run.journal import write_journal as write_journal
    from nearkin.run.queued import QueueRunner as QueueRunner
    from nearkin.run.runner import Job as Job
    from nearkin.run.runner import Runner as Runner
    from nearkin.run.runner import SerialRunner as SerialRunner
    from nearkin.run.runner import as_completed as as_completed
    from nearkin.run.runner import run_jobs as run_jobs
    from nearkin.run.stages import StageCache as StageCache
    from nearkin.run.tracking import mlflow as mlflow
    from nearkin.run.tracking import tensorboard as tensorboard
else:
    __getattr__, __dir__, __all__ = exports(__name__)
