"""Execution: checkpoints, stages, journals of running commands, tracking."""

from typing import TYPE_CHECKING

from nearkin.core.lazy import exports

if TYPE_CHECKING:
    from nearkin.run.checkpoints import Checkpoints as Checkpoints
    from nearkin.run.checkpoints import FolderCheckpoints as FolderCheckpoints
    from nearkin.run.checkpoints import MemoryCheckpoints as MemoryCheckpoints
    from nearkin.run.journal import JournalEntry as JournalEntry
    from nearkin.run.journal import journals as journals
    from nearkin.run.journal import write_journal as write_journal
    from nearkin.run.stages import StageCache as StageCache
    from nearkin.run.tracking import mlflow as mlflow
    from nearkin.run.tracking import tensorboard as tensorboard
else:
    __getattr__, __dir__, __all__ = exports(__name__)
